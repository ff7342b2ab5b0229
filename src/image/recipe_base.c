#include "image/recipe.h"

#define PACKAGES                                                                                                                \
	"bash,python3,python-is-python3,python3-pip,python3-venv,git,curl,ca-certificates,iputils-ping,sudo,ncurses-bin,ncurses-base," \
	"procps,iproute2,attr,less,netbase"

const struct recipe recipe_base = {
	.name = "base system",
	.mirror = true,
	.seconds = 30,
	.script =
		"phase 1 reading the package sources\n"
		"package_sources\n"
		"export TMPDIR=$work/tmp\n"
		"mkdir tmp; chmod 1777 tmp\n"
		"mmdebstrap --mode=root --format=directory --variant=minbase --keyring=$work/keys --aptopt=$work/apt.conf \\\n"
		"	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \\\n"
		"	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \\\n"
		"	--dpkgopt='path-exclude=/usr/share/locale/*/*' \\\n"
		"	--include=" PACKAGES " $suite $root $([ ! -s sources ] || echo -) < sources 2>&1 | while IFS= read -r line; do\n"
		"	case $line in\n"
		"	'I: running apt-get update'*) phase 4 reading the package lists ;;\n"
		"	'I: downloading packages'*) phase 12 downloading packages ;;\n"
		"	'I: extracting archives'*) phase 30 unpacking the base system ;;\n"
		"	'I: installing essential'*) phase 38 installing the base system ;;\n"
		"	'I: installing remaining'*) phase 50 installing python, git and the rest ;;\n"
		"	'I: cleaning'*) phase 84 cleaning up ;;\n"
		"	esac\n"
		"	printf '%s\\n' \"$line\"\n"
		"	case $line in 'I: success'*) : > made ;; esac\n"
		"done\n"
		"[ -e made ]\n"
		"phase 86 making users and settings\n"
		/* Sandboxes install from where the image came from, without anybody's password. */
		"cat $root/etc/apt/sources.list $root/etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's#//[^/@ ]*@#//#; /^deb /p' > plain || :\n"
		"[ -s plain ]\n"
		"mv plain $root/etc/apt/sources.list\n"
		"rm -rf $root/etc/apt/apt.conf.d/99mmdebstrap $root/etc/apt/sources.list.d/* $root/etc/apt/trusted.gpg.d/keys*\n"
		"mv $root/etc/dpkg/dpkg.cfg.d/99mmdebstrap $root/etc/dpkg/dpkg.cfg.d/no-docs\n"
		"chroot $root useradd --uid 1000 --user-group --groups sudo --create-home --shell /bin/bash user\n"
		"echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' > $root/etc/sudoers.d/user\n"
		"chmod 0440 $root/etc/sudoers.d/user\n"
		/* A sandbox is a throw-away machine: pip installs into it without asking for a virtual environment. */
		"printf '[global]\\nbreak-system-packages = true\\n' > $root/etc/pip.conf\n"
		/* Written anew in each sandbox. */
		"for f in machine-id hostname hosts resolv.conf; do rm -f $root/etc/$f; : > $root/etc/$f; done\n"
		"rm -f $root/var/lib/dbus/machine-id $root/var/cache/ldconfig/aux-cache $root/etc/*- $root/var/lib/dpkg/*-old $root/var/cache/debconf/*-old\n"
		"rm -rf $root/var/lib/apt/lists/* $root/var/cache/apt/*.bin $root/var/cache/apt/archives/*.deb $root/var/log/* $root/tmp/* $root/run/* $root/dev/*\n"
		"mkdir -p $root/var/log/apt\n"
		"phase 90 making the image\n"
		"mkfs.erofs image $root >/dev/null\n"
		"phase 97 checking the image\n",
};
