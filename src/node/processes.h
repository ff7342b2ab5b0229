/* What our own processes take: serve and its children, found from one of them. */
#ifndef CUBICLE_NODE_PROCESSES_H
#define CUBICLE_NODE_PROCESSES_H

#include "node/figures.h"

/* Reads /proc, some ms for thousands of descriptors: on a worker. Fills the fields of processes that it finds; others stay. */
void processes_read(struct node_figures *f);

#endif
