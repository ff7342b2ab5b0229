"""How QEMU emulates a machine with a KVM in it, and what a server on that needs of its kernel."""

KVM = ("irqbypass", "ccp", "kvm", "kvm-amd")
SERVER = (*KVM, "tun", "loop", "overlay", "erofs", "veth", "bridge", "nf_tables", "nft_ct", "nft_nat", "nft_masq", "nft_chain_nat", "crc32c_generic", "lz4", "virtio_rng")
# QEMU's SVM changes the set of pending interrupts without the lock whenever a guest is entered or left (do_vmexit() in svm_helper.c), and so forgets one now and then, until the next one comes. The
# local APIC's timer is set anew by its own interrupt: forgotten once, it never comes again, and the machine stands. The timer that these words choose comes by itself.
TIMER = "no_timer_check nolapic_timer nohz=off highres=off"
CPU = "qemu64,+svm,+npt,+rdrand"  # -cpu max makes KVM complain about XSAVE
