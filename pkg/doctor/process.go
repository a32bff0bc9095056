// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// processes returns the folders of all processes.
func processes(proc string) []string {
	var list []string
	entries, _ := os.ReadDir(proc)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, filepath.Join(proc, e.Name()))
		}
	}
	return list
}

// readKubelet reads the nameservers for pods from the kubelet's command line and
// configuration file.
func readKubelet(ctx context.Context, proc, self string, read readFunc) (k Kubelet) {
	for _, p := range processes(proc) {
		if name, _ := os.ReadFile(filepath.Join(p, "comm")); strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		dir, err := os.Open(p) // pins this process: another process may get its PID
		if err != nil {
			continue
		}
		pinned := fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
		isNode, err := inNode(pinned, proc, self)
		found := Kubelet{}
		if isNode { // read no command line of a pod's process: that process could make the read block
			found = kubeletIn(ctx, p, pinned, read)
			// Check again: a pod's process starts in the node's namespaces, and may have left them before the reading.
			isNode, err = inNode(pinned, proc, self)
		}
		_ = dir.Close()
		switch {
		case isNode:
			return found
		case err != nil && k.Err == nil:
			k.Err = fmt.Errorf("process %s is called kubelet, but may be a pod's: %w", filepath.Base(p), err)
		}
	}
	return k
}

// inNode reports whether the process with the folder p runs as root in the node's namespaces. Those are the namespaces of
// this process, except for the mount namespace: this process may be in a container, so process 1 has the node's.
func inNode(p, proc, self string) (bool, error) {
	return inNamespaces(p, proc, self, "ns/net", "ns/pid", "ns/user", "ns/mnt")
}

// inNodeNetwork reports whether the process with the folder p runs as root in the node's network, maybe in a container.
func inNodeNetwork(p, self string) (bool, error) {
	return inNamespaces(p, "", self, "ns/net", "ns/user")
}

func inNamespaces(p, proc, self string, kinds ...string) (bool, error) {
	for _, kind := range kinds {
		of := self
		if kind == "ns/mnt" {
			of = filepath.Join(proc, "1")
		}
		theirs, err := os.Readlink(filepath.Join(p, kind))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return false, nil // the process has ended
		}
		if err != nil {
			return false, fmt.Errorf("reading its namespaces: %w", err)
		}
		if nodes, err := os.Readlink(filepath.Join(of, kind)); err == nil && theirs != nodes {
			return false, nil
		}
	}
	state, err := os.ReadFile(filepath.Join(p, "status")) // the file status has the process's user; the owner of the folder may be another user
	if err != nil {
		return false, nil // the process has ended
	}
	for line := range strings.Lines(string(state)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "Uid:" {
			return fields[1] == "0" && fields[2] == "0", nil
		}
	}
	return false, nil
}

// kubeletIn reads the settings of the kubelet from its folder p in /proc. pinned is the same folder, already open. A flag
// takes precedence over the file.
func kubeletIn(ctx context.Context, p, pinned string, read readFunc) Kubelet {
	line, err := os.ReadFile(filepath.Join(pinned, "cmdline"))
	if err != nil {
		return Kubelet{Err: fmt.Errorf("reading the kubelet's command line: %w", err)}
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	if list := flag(args, "cluster-dns"); list != "" {
		return Kubelet{DNS: strings.Split(list, ","), From: "its flag --cluster-dns"}
	}
	file := flag(args, "config")
	if file == "" {
		return Kubelet{From: "its flags"}
	}
	path := file
	if !filepath.IsAbs(file) {
		folder, err := os.Readlink(filepath.Join(pinned, "cwd"))
		if err != nil {
			return Kubelet{Err: fmt.Errorf("reading the kubelet's working directory: %w", err)}
		}
		path = filepath.Join(folder, file)
	}
	got, err := read(ctx, filepath.Join(p, "root"), path)
	if err == nil && got.Missing {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if err != nil {
		return Kubelet{Err: fmt.Errorf("reading the kubelet's configuration file: %w", err)}
	}
	var settings struct {
		ClusterDNS []string `json:"clusterDNS"`
	}
	if err := yaml.Unmarshal(got.Text, &settings); err != nil {
		return Kubelet{Err: fmt.Errorf("reading the kubelet's configuration file: %w", err)}
	}
	return Kubelet{DNS: settings.ClusterDNS, From: "clusterDNS in " + file}
}

// flag returns the last value of a flag in args: --name=value or --name value.
func flag(args []string, name string) string {
	value := ""
	for i, arg := range args {
		arg = strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		if v, ok := strings.CutPrefix(arg, name+"="); ok {
			value = v
		} else if arg == name && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// resolvConf is the file with the nameservers of a process, in the process's root folder.
const resolvConf = "/etc/resolv.conf"

// podResolvers counts the nameservers in /etc/resolv.conf of one process in each network
// namespace except this one. A process that has its own namespace but the node's file is
// no pod. The error says why pods may be missing in the counts.
func podResolvers(ctx context.Context, proc, self string, read readFunc) (map[netip.Addr]int, error) {
	own, err := os.Readlink(filepath.Join(self, "ns/net"))
	if err != nil {
		return nil, fmt.Errorf("reading the network namespace: %w", err)
	}
	node, _ := read(ctx, filepath.Join(proc, "1/root"), resolvConf)
	seen := map[string]bool{own: true, "": true} // "": no permission to read the link
	counts := map[netip.Addr]int{}
	var missed error
	for _, p := range processes(proc) {
		namespace, _ := os.Readlink(filepath.Join(p, "ns/net"))
		mounts, _ := os.Readlink(filepath.Join(p, "ns/mnt"))
		container := namespace + mounts // read one process of each: a pod may have many processes, but few containers
		if seen[namespace] || seen[container] {
			continue
		}
		if ctx.Err() != nil {
			return counts, fmt.Errorf("not all processes were read within %s", filesTimeout)
		}
		seen[container] = true
		got, err := read(ctx, filepath.Join(p, "root"), resolvConf)
		if errors.Is(err, errSlow) {
			seen[namespace] = true // read no further process of this pod: each could take as long
		}
		if err != nil {
			missed = cmp.Or(missed, fmt.Errorf("process %s: %w", filepath.Base(p), err))
			continue
		}
		if got.Missing || got.Device == node.Device && got.Inode == node.Inode && !node.Missing {
			continue // try further processes of this namespace: a pod's sandbox may have no such file, but its containers do
		}
		for _, server := range nameservers(string(got.Text)) {
			seen[namespace] = true
			counts[server]++
		}
	}
	return counts, missed
}

// maxNameservers is how many nameservers of a resolv.conf the resolvers of C libraries use: MAXNS of resolv.h.
const maxNameservers = 3

// nameservers returns the distinct nameservers in a resolv.conf.
func nameservers(text string) []netip.Addr {
	var list []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(list) == maxNameservers {
			continue
		}
		server, err := netip.ParseAddr(fields[1])
		if server = server.WithZone(""); err == nil && !slices.Contains(list, server) {
			list = append(list, server)
		}
	}
	return list
}
