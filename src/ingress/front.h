/* The front process: public sockets, control plane and ingress. */
#ifndef CUBICLE_INGRESS_FRONT_H
#define CUBICLE_INGRESS_FRONT_H

/* `cubicle front`, started by serve with the descriptors of docs/architecture.md. The exit status. */
int front_main(int argc, char **argv);

#endif
