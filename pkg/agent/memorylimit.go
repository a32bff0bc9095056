// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// containerLimit is the memory in bytes that this process's container may use. The error
// is one of memlimit's when there is no limit.
func containerLimit() (uint64, error) { return lowerLimit("/proc/self", memlimit.FromCgroup) }

// lowerLimit is hard, beyond which the kernel kills, or memory.high of cgroup version 2
// where that is less: beyond that the kernel makes a process wait for each page, which
// an agent does not survive any better. Kubelets with MemoryQoS set it.
func lowerLimit(self string, hard func() (uint64, error)) (uint64, error) {
	limit, err := hard()
	high := lowestHigh(self)
	if high < math.MaxUint64 && errors.Is(err, memlimit.ErrNoLimit) {
		limit, err = high, nil
	}
	return min(limit, high), err
}

// lowestHigh is the lowest memory.high of the process's cgroup and those above it that
// can be seen, [math.MaxUint64] without any. What cannot be read is no bound: the kernel
// of cgroup version 1 has none.
func lowestHigh(self string) uint64 {
	lowest := uint64(math.MaxUint64)
	own, _ := os.ReadFile(filepath.Join(self, "cgroup"))
	mounts, _ := os.ReadFile(filepath.Join(self, "mountinfo"))
	path := unifiedPath(string(own))
	for line := range strings.Lines(string(mounts)) {
		mount, below, ok := unifiedMount(line, path)
		for ok {
			text, _ := os.ReadFile(filepath.Join(mount, below, "memory.high"))
			if high, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
				lowest = min(lowest, high)
			}
			ok = below != "."
			below = filepath.Dir(below)
		}
	}
	return lowest
}

// unifiedPath is the path of a process's cgroup of version 2, out of its file cgroup in
// /proc; "" if it has none.
func unifiedPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// unifiedMount tells where a line of mountinfo mounts cgroups of version 2, and the path
// below it of the cgroup at path. It is not ok when that one cannot be seen there: the
// mount may show another part of the tree, or one from above this process's namespace.
func unifiedMount(line, path string) (mount, below string, ok bool) {
	// 31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
	left, right, ok := strings.Cut(line, " - ")
	fields := strings.Fields(left)
	if !ok || !strings.HasPrefix(right, "cgroup2 ") || len(fields) < 5 {
		return "", "", false
	}
	root := fields[3]
	if !filepath.IsAbs(path) || strings.HasPrefix(path, "/..") || strings.HasPrefix(root, "/..") {
		return "", "", false
	}
	below, err := filepath.Rel(root, path)
	return fields[4], below, err == nil && filepath.IsLocal(below)
}
