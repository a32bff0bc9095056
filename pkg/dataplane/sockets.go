// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPrograms is how many programs of one kind are listed.
const maxPrograms = 16

// socketPrograms lists the eBPF programs that see, and may rewrite, the destinations of
// sockets in this process's cgroup. It includes programs of parent cgroups, which may serve
// the whole node. Pods may have others.
func socketPrograms(self string) ([]string, error) {
	dir, err := cgroup(self)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, nil // this cgroup cannot have programs
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return programsOf(f)
}

func programsOf(dir *os.File) ([]string, error) {
	var pin runtime.Pinner // the kernel gets pointers as integers
	defer pin.Unpin()
	var names []string
	for _, kind := range []uint32{
		unix.BPF_CGROUP_INET4_CONNECT, unix.BPF_CGROUP_INET6_CONNECT, unix.BPF_CGROUP_UDP4_SENDMSG, unix.BPF_CGROUP_UDP6_SENDMSG,
	} {
		ids := make([]uint32, maxPrograms)
		pin.Pin(&ids[0])
		q := struct { // the part of union bpf_attr that BPF_PROG_QUERY reads and writes
			targetFD, attachType, queryFlags, attachFlags uint32
			progIDs                                       uint64
			count, _                                      uint32
		}{
			targetFD: uint32(dir.Fd()), attachType: kind, queryFlags: unix.BPF_F_QUERY_EFFECTIVE,
			progIDs: uint64(uintptr(unsafe.Pointer(&ids[0]))), count: maxPrograms,
		}
		err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&q), unsafe.Sizeof(q))
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			return names, nil // the kernel does not support such programs
		case err != nil && !errors.Is(err, unix.ENOSPC): // ENOSPC: there are more programs
			return names, fmt.Errorf("querying them: %w", err)
		}
		for _, id := range ids[:min(q.count, maxPrograms)] {
			if name := programName(id); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// programName returns the name of a program, or its ID without CAP_SYS_ADMIN.
func programName(id uint32) string {
	by := [3]uint32{id} // then the next ID and flags
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_GET_FD_BY_ID, uintptr(unsafe.Pointer(&by)), unsafe.Sizeof(by))
	if errno != 0 {
		return fmt.Sprintf("%d", id)
	}
	defer func() { _ = unix.Close(int(fd)) }()
	var pin runtime.Pinner
	defer pin.Unpin()
	info := make([]byte, 80) // struct bpf_prog_info up to its name, the last 16 bytes
	pin.Pin(&info[0])
	o := struct { // the part of union bpf_attr that BPF_OBJ_GET_INFO_BY_FD reads and writes
		fd, size uint32
		info     uint64
	}{uint32(fd), uint32(len(info)), uint64(uintptr(unsafe.Pointer(&info[0])))}
	err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&o), unsafe.Sizeof(o))
	if name := cstring(info[64:]); err == nil && name != "" {
		return name
	}
	return fmt.Sprintf("%d", id)
}

func bpf(cmd uintptr, attr unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size); errno != 0 {
		return errno
	}
	return nil
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
		// A container sees its own cgroup as the root of the mount, whatever the path says.
		below, err := filepath.Rel(fields[3], path)
		if err != nil || strings.HasPrefix(below, "..") {
			below = "."
		}
		return filepath.Join(fields[4], below)
	}
	return ""
}
