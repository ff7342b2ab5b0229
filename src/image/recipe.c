#include "image/recipe.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

const char recipe_prelude[] =
	"set -eu\n"
	"suite=bookworm mirror=$1 files=$2 work=$PWD root=$PWD/root\n"
	"phase() { echo \"" RECIPE_PHASE "$*\"; }\n"
	"failed() { echo \"" RECIPE_FAILED "$*\"; exit 1; }\n"
	/* The mirror given, else the machine's own sources for this release, else mmdebstrap's default; their keys; how this machine reaches them. None of it
	 * stays in the image. */
	"package_sources() {\n"
	"	mkdir keys\n"
	"	cp /usr/share/keyrings/debian-archive-keyring.gpg keys/\n"
	"	cp /etc/apt/trusted.gpg.d/*.gpg /etc/apt/trusted.gpg.d/*.asc keys/ 2>/dev/null || :\n"
	"	if [ -n \"$mirror\" ]; then\n"
	"		echo \"deb $mirror $suite main\" > sources\n"
	"	else\n"
	"		apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(SOURCESENTRY)' 'Created-By: Packages' 2>/dev/null |\n"
	"			awk -v s=$suite '$3 == \"main\" && ($2 == s || $2 == s \"-updates\" || $2 == s \"-security\")' | sort -u > targets || :\n"
	"		awk '{ print \"deb\", $1, $2, $3 }' targets | sort -u > sources\n"
	"		grep -q \" $suite main\" sources || : > sources\n"
	/* Keys that the same files name for their sources. */
	"		for f in $(sed 's/.* //; s/:[0-9]*$//' targets | sort -u); do\n"
	"			for k in $(sed -n 's/.*[Ss]igned-[Bb]y[:=][[:space:]]*\\(\\/[^] ,]*\\).*/\\1/p' \"$f\" 2>/dev/null); do\n"
	"				if [ -f \"$k\" ]; then cp \"$k\" keys/; fi\n"
	"			done\n"
	"		done\n"
	"	fi\n"
	"	{\n"
	"		echo 'Acquire::Retries \"2\"; Acquire::http::Timeout \"20\"; Acquire::https::Timeout \"20\"; Acquire::Languages \"none\";'\n"
	"		apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Check-|ForceIPv|Retries)' || :\n"
	"	} > apt.conf\n"
	"	chmod -R a+rX keys apt.conf\n"
	"}\n"
	/* The tree of the layers below, writable: what changes goes to a file system of its own, since the state directory's may be no place for an overlay. */
	"stack() {\n"
	"	truncate -s 16G disk\n"
	"	mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1,nodiscard disk\n"
	"	mkdir over root\n"
	"	mount -o loop,discard disk over\n"
	"	mkdir over/upper over/work\n"
	"	lowers=\n"
	"	for l in lower*; do\n"
	"		mkdir at-$l\n"
	"		mount -t erofs -o ro,loop $l at-$l\n"
	"		lowers=at-$l${lowers:+:$lowers}\n"
	"	done\n"
	/* A layer of its own must not name anything of those below. */
	"	mount -t overlay overlay -o lowerdir=$lowers,upperdir=over/upper,workdir=over/work,redirect_dir=off,metacopy=off,index=off,xino=off $root\n"
	"}\n"
	/* What programs in the tree need, and keep nothing in it. */
	"enter() {\n"
	"	mount -t proc -o nosuid,nodev,noexec proc $root/proc\n"
	"	for d in dev run tmp; do mount -t tmpfs -o mode=0755 tmpfs $root/$d; done\n"
	"	mkdir $root/dev/shm\n"
	"	chmod 1777 $root/tmp $root/dev/shm\n"
	"	for d in null zero full random urandom; do\n"
	"		: > $root/dev/$d\n"
	"		mount --bind /dev/$d $root/dev/$d\n"
	"	done\n"
	"	printf '#!/bin/sh\\nexit 101\\n' > $root/usr/sbin/policy-rc.d\n"
	"	chmod 0755 $root/usr/sbin/policy-rc.d\n"
	"}\n"
	"leave() {\n"
	"	rm $root/usr/sbin/policy-rc.d\n"
	"	umount -R $root/dev\n"
	"	umount $root/tmp $root/run $root/proc\n"
	"}\n"
	/* fetch DIRECTORY PROGRAM...: a client of a registry, from the tree, as nobody, in a directory of its own, with this machine's way to the network. */
	"fetch() {\n"
	"	mkdir -p $root/tmp/$1 $root/tmp/host\n"
	"	chown 65534:65534 $root/tmp/$1\n"
	"	for f in etc/resolv.conf etc/hosts etc/nsswitch.conf etc/ssl/certs etc/pip.conf etc/npmrc; do\n"
	"		if [ -e /$f ] && [ -e $root/$f ]; then mount --bind /$f $root/$f; fi\n"
	"	done\n"
	"	for v in SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS PIP_CERT; do\n"
	"		eval f=\\${$v:-}\n"
	"		if [ -n \"$f\" ] && [ -f \"$f\" ]; then cp \"$f\" $root/tmp/host/$v; export $v=/tmp/host/$v; fi\n"
	"	done\n"
	"	chmod -R a+rX $root/tmp/host\n"
	"	fetched=0\n"
	"	HOME=/tmp/$1 PATH=/usr/local/bin:$PATH chroot --userspec=65534:65534 $root sh -c 'cd /tmp/$0 && exec \"$@\"' \"$@\" </dev/null || fetched=$?\n"
	"	for f in etc/resolv.conf etc/hosts etc/nsswitch.conf etc/ssl/certs etc/pip.conf etc/npmrc; do\n"
	"		if mountpoint -q $root/$f; then umount $root/$f; fi\n"
	"	done\n"
	"	return $fetched\n"
	"}\n"
	"seal() {\n"
	"	umount $root\n"
	"	phase 90 making the image\n"
	"	mkfs.erofs image over/upper >/dev/null\n"
	"	phase 97 checking the image\n"
	"}\n";

int recipe_find_files(const struct recipe *r, char ret[PATH_MAX], struct error *err)
{
	static const char *const places[] = {"", "../libexec/cubicle/", "../lib/cubicle/", "../../scripts/template/"};
	char self[PATH_MAX];
	*ret = 0;
	if (!r->files)
		return 0;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return error_errno(err, -errno, "/proc/self/exe");
	self[n] = 0;
	*strrchr(self, '/') = 0;
	for (size_t i = 0; i < ARRAY_SIZE(places); i++)
		if (snprintf(ret, PATH_MAX, "%s/%s%s", self, places[i], r->files) < PATH_MAX && access(ret, R_OK) == 0)
			return 0;
	*ret = 0;
	return error_set(err, -ENOENT, 500, "%s is not installed beside %s", r->files, self);
}

static int add_file(EVP_MD_CTX *md, const char *path)
{
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	cleanup_free char *bytes = malloc(1 << 16);
	ssize_t n;
	if (fd < 0 || !bytes)
		return fd < 0 ? -errno : -ENOMEM;
	while ((n = fd_read_full(fd, bytes, 1 << 16)) > 0)
		if (!EVP_DigestUpdate(md, bytes, (size_t)n))
			return -EIO;
	return (int)n;
}

int recipe_digest(const struct recipe *r, const char *below, char ret[RECIPE_DIGEST + 1], struct error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	char path[PATH_MAX];
	int e = recipe_find_files(r, path, err);
	if (e < 0)
		return e;
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	/* The terminating zeros keep one text from running into the next. */
	if (!md || !EVP_DigestInit_ex(md, EVP_sha256(), NULL) || !EVP_DigestUpdate(md, below, strlen(below) + 1) ||
		!EVP_DigestUpdate(md, recipe_prelude, sizeof(recipe_prelude)) || !EVP_DigestUpdate(md, r->script, strlen(r->script) + 1))
		e = -ENOMEM;
	if (e == 0 && *path)
		e = add_file(md, path);
	if (e == 0 && !EVP_DigestFinal_ex(md, digest, &n))
		e = -EIO;
	EVP_MD_CTX_free(md);
	if (e < 0)
		return error_errno(err, e, "digest of the recipe %s", r->name);
	hex_encode(ret, digest, n);
	return 0;
}
