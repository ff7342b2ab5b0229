/* Which paths the tools take (docs/mcp.md says the same): relative ones are under the workspace, and never leave it. */
#ifndef CUBICLE_MCP_PATH_H
#define CUBICLE_MCP_PATH_H

#include "base/buf.h"
#include "base/error.h"

#include <stdbool.h>

#define MCP_WORKSPACE "/home/user"

enum { MCP_MAX_PATH = 4096 };

/*
 * Appends the absolute path, without "." and "..". `~` and `~/x` are the workspace. Absolute ones are refused unless `absolute`, and only then ".." may leave the workspace. 0, or -EINVAL with *err (400)
 * that names `path`: empty, too long, a NUL, out of the workspace. Symbolic links are the caller's to look at.
 */
int mcp_path(struct str path, bool absolute, struct buf *to, struct error *err);
/* Is the absolute path (without ".." in it) in the workspace? */
bool mcp_path_inside(struct str path);

#endif
