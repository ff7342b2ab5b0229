/* The egress process: `cubicle egress`, started by serve (docs/architecture.md, "Processes"). */
#ifndef CUBICLE_EGRESS_EGRESS_H
#define CUBICLE_EGRESS_EGRESS_H

/* Descriptor 3: the channel to serve; 4: the options. Ends with the exit status when serve asks or is gone. */
int egress_main(int argc, char **argv);

#endif
