/*
 * Does a KVM run guests at the speed of the machine? That /dev/kvm is there and makes virtual machines proves nothing: a paravirtual one interprets what a guest's kernel does, some million
 * instructions a second, and no kernel gets to its end. So a guest of one page is timed.
 */
#ifndef CUBICLE_VMM_PROBE_H
#define CUBICLE_VMM_PROBE_H

enum vmm_probe {
	VMM_PROBE_NONE,        /* no KVM, or it makes no machine */
	VMM_PROBE_INTERPRETED, /* it makes one, and that is too slow */
	VMM_PROBE_HARDWARE,
};

enum { VMM_PROBE_REASON = 200 };

/* `kvm`: a descriptor of /dev/kvm, not owned. Takes about a millisecond where there is hardware, at most about a second elsewhere. `reason`: a sentence for the operator, always. Any thread. */
enum vmm_probe vmm_probe(int kvm, char reason[VMM_PROBE_REASON]);

#endif
