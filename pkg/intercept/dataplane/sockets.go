// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// maxPrograms limits how many programs of each attach type are listed.
const maxPrograms = 16

// socketPrograms lists the eBPF programs that see, and may rewrite, the destinations of
// sockets in this process's cgroup. It includes programs of parent cgroups, which may serve
// the whole node. The cgroups of pods may have other programs.
func socketPrograms(self string) ([]string, error) {
	dir, err := cgroup(self)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, nil // without a mounted cgroup v2 no programs can be found
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return programsOf(f)
}

func programsOf(dir *os.File) ([]string, error) {
	var names []string
	for _, kind := range []ebpf.AttachType{
		ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
	} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: kind, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE})
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported):
			return names, nil // the kernel does not support such programs
		case err != nil:
			return names, err
		}
		for _, p := range found.Programs[:min(len(found.Programs), maxPrograms)] {
			if name := programName(p.ID); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// programName returns the name of a program, or its ID without CAP_SYS_ADMIN.
func programName(id ebpf.ProgramID) string {
	if p, err := ebpf.NewProgramFromID(id); err == nil {
		defer func() { _ = p.Close() }()
		if info, err := p.Info(); err == nil && info.Name != "" {
			return info.Name
		}
	}
	return strconv.Itoa(int(id))
}

// cgroup returns the directory of this process's cgroup v2; "" if there is none or it is
// not mounted.
func cgroup(self string) (string, error) {
	own, err := os.ReadFile(filepath.Join(self, "cgroup"))
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile(filepath.Join(self, "mountinfo"))
	if err != nil {
		return "", err
	}
	return cgroupPath(own, mounts), nil
}

func cgroupPath(own, mounts []byte) string {
	path, found := "", false
	for s := bufio.NewScanner(bytes.NewReader(own)); s.Scan() && !found; {
		path, found = strings.CutPrefix(s.Text(), "0::")
	}
	if !found {
		return ""
	}
	for s := bufio.NewScanner(bytes.NewReader(mounts)); s.Scan(); {
		// 31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
		left, right, ok := strings.Cut(s.Text(), " - ")
		fields := strings.Fields(left)
		if !ok || !strings.HasPrefix(right, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		// In a container the mount may begin at the container's own cgroup, so that path is not below its root.
		below, err := filepath.Rel(fields[3], path)
		if err != nil || strings.HasPrefix(below, "..") {
			below = "."
		}
		return filepath.Join(fields[4], below)
	}
	return ""
}
