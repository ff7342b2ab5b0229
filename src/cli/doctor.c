#include "cli/commands.h"
int cmd_doctor(struct cli *c)
{
	return 0;
}
