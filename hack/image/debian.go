// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// debianSources is the release that the iptables variant is made of, the one whose iptables the tests use. Its packages are
// the newest of their day, security updates included, so that this variant is the same again only until Debian publishes
// others; the bill of materials names their versions.
const debianSources = `Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// debianPackage is a package of the iptables variant.
type debianPackage struct {
	name, version, arch string
	control             []byte // what dpkg knows of it
}

// component describes a Debian package.
func (p *debianPackage) component() cdx.Component {
	url := "pkg:deb/debian/" + p.name + "@" + p.version + "?arch=" + p.arch
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version, PackageURL: url, Scope: cdx.ScopeRequired}
}

// debianTree fetches iptables, ipset and what they need for an architecture, and unpacks it without running any of it.
func debianTree(ctx context.Context, arch string) (tree, []debianPackage, error) {
	folder, err := os.MkdirTemp("", "node-cache-debian-")
	if err != nil {
		return nil, nil, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	archives, err := fetchDebian(ctx, folder, arch)
	if err != nil {
		return nil, nil, err
	}
	all, packages := tree{}, []debianPackage(nil)
	for _, file := range archives {
		p, err := describe(ctx, file)
		if err != nil {
			return nil, nil, err
		}
		if err := unpack(ctx, file, all); err != nil {
			return nil, nil, fmt.Errorf("unpacking %s: %w", filepath.Base(file), err)
		}
		// Scanners look here for the packages of an image without dpkg.
		all["var/lib/dpkg/status.d/"+p.name] = node{data: p.control, mode: 0o644}
		packages = append(packages, *p)
	}
	// Otherwise made by the package's scripts. A node with the rules of the old tables is met by the programs' full names.
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			all["usr/sbin/"+family+suffix] = node{target: family + "-nft" + suffix}
		}
	}
	return all, packages, nil
}

// fetchDebian downloads the packages through apt, which proves their signatures, without touching the machine's own state.
func fetchDebian(ctx context.Context, folder, arch string) ([]string, error) {
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "etc"} {
		if err := os.MkdirAll(filepath.Join(folder, sub), 0o755); err != nil {
			return nil, fmt.Errorf("making apt's folders: %w", err)
		}
	}
	sources, status := filepath.Join(folder, "etc", "debian.sources"), filepath.Join(folder, "state", "status")
	if err := errors.Join(os.WriteFile(sources, []byte(debianSources), 0o644), os.WriteFile(status, nil, 0o644)); err != nil {
		return nil, fmt.Errorf("making apt's files: %w", err)
	}
	private := []string{"-q", "-y", "--no-install-recommends"}
	for _, option := range []string{
		"APT::Architecture=" + arch, "APT::Architectures::=" + arch, "APT::Sandbox::User=root", "Debug::NoLocking=1",
		"Acquire::Languages=none", "Dir::State=" + filepath.Join(folder, "state"), "Dir::State::status=" + status,
		"Dir::Cache=" + filepath.Join(folder, "cache"), "Dir::Etc::sourcelist=" + sources, "Dir::Etc::sourceparts=/dev/null",
	} {
		private = append(private, "-o", option)
	}
	if _, err := output(ctx, "apt-get", append(slices.Clone(private), "update")...); err != nil {
		return nil, err
	}
	if _, err := output(ctx, "apt-get", append(private, "-d", "install", "iptables", "ipset")...); err != nil {
		return nil, err
	}
	archives, err := filepath.Glob(filepath.Join(folder, "cache", "archives", "*.deb"))
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	if len(archives) == 0 {
		return nil, errors.New("fetching Debian packages: apt-get left none")
	}
	slices.Sort(archives)
	return archives, nil
}

// describe reads a package's own description.
func describe(ctx context.Context, file string) (*debianPackage, error) {
	control, err := output(ctx, "dpkg-deb", "--field", file)
	if err != nil {
		return nil, err
	}
	p := &debianPackage{control: control}
	for line := range strings.Lines(string(control)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "Package":
			p.name = value
		case "Version":
			p.version = value
		case "Architecture":
			p.arch = value
		}
	}
	if p.name == "" || p.version == "" {
		return nil, fmt.Errorf("reading %s: it has no name or no version", filepath.Base(file))
	}
	return p, nil
}

// unpack adds a package's files to a tree.
func unpack(ctx context.Context, file string, to tree) error {
	data, err := output(ctx, "dpkg-deb", "--fsys-tarfile", file)
	if err != nil {
		return err
	}
	return eachEntry(bytes.NewReader(data), func(h *tar.Header, content io.Reader) error {
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch {
		case h.Typeflag == tar.TypeDir || unneeded(name):
			return nil
		case h.Typeflag == tar.TypeSymlink:
			to[name] = node{target: h.Linkname}
			return nil
		case h.Typeflag == tar.TypeReg:
			data, err := io.ReadAll(content)
			to[name] = node{data: data, mode: h.Mode & 0o777}
			return err
		}
		return fmt.Errorf("%s is of type %q", name, h.Typeflag)
	})
}

// unneeded reports files that no program of the image reads: manuals, translations, character sets, and what is said of the
// packages but for their licences.
func unneeded(name string) bool {
	for _, folder := range []string{"usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/bash-completion/", "lib/systemd/"} {
		if strings.HasPrefix(name, folder) {
			return true
		}
	}
	return strings.Contains(name, "/gconv/") || strings.HasPrefix(name, "usr/share/doc/") && path.Base(name) != "copyright"
}

// output runs a program of the machine and returns what it prints.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return outputOf(command)
}
