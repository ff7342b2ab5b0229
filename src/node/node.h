/* The node process: owns the sandboxes of this machine, their records, deadlines and kills. */
#ifndef CUBICLE_NODE_NODE_H
#define CUBICLE_NODE_NODE_H

/* Runs the process as docs/architecture.md says ("Descriptors at start"). Exit status. */
int node_main(int argc, char **argv);

#endif
