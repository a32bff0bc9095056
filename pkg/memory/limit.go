// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/sys/unix"
)

// containerLimit returns the memory limit of this process's container in bytes. Without a limit the error is
// one of memlimit's.
func containerLimit() (uint64, error) { return lowerLimit("/proc/self", memlimit.FromCgroup) }

// lowerLimit returns the lower of hard, at which the kernel kills the process, and memory.high of cgroup v2. Above
// memory.high the kernel delays each page allocation, which an agent does not survive either. Kubelets with
// MemoryQoS set it.
func lowerLimit(self string, hard func() (uint64, error)) (uint64, error) {
	limit, err := hard()
	high := lowestHigh(self)
	if high < math.MaxUint64 && errors.Is(err, memlimit.ErrNoLimit) {
		limit, err = high, nil
	}
	return min(limit, high), err
}

// lowestHigh returns the lowest memory.high of the process's cgroup and its visible ancestors,
// [math.MaxUint64] without any. Unreadable files are no bound: cgroup v1 has none.
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

// unifiedPath returns the path of a process's v2 cgroup from its /proc cgroup file; "" if it has none.
func unifiedPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// unifiedMount parses a line of mountinfo. It returns where cgroup v2 is mounted, and the path of the cgroup
// at path below the mount. ok is false if the cgroup is not visible there: the mount may show another part of
// the tree, or one above this process's namespace.
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

// inMemory reports whether files in folder use this container's memory, because the folder is on a tmpfs or ramfs. For a missing
// folder its parent decides; if that is missing too, the answer is yes.
func inMemory(folder string) bool {
	if _, err := os.Stat(folder); err != nil {
		folder = filepath.Dir(folder)
	}
	var fs unix.Statfs_t
	return unix.Statfs(folder, &fs) != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}
