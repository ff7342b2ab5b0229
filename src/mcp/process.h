/* `cubicle tools`: the process of the MCP server over HTTP. It has no privilege, and no rights of its own: it calls the API with the keys of its callers. */
#ifndef CUBICLE_MCP_PROCESS_H
#define CUBICLE_MCP_PROCESS_H

/* Descriptors as docs/architecture.md, "Descriptors at start", has them. The exit code. */
int tools_main(int argc, char **argv);

#endif
