// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupMount is where the control groups are.
const cgroupMount = "/sys/fs/cgroup"

// cgroupPrefix begins the names of the groups that clusters make, and the number of the process that made one follows.
const cgroupPrefix = "kubenode-"

// hierarchies are the trees of groups: one in version 2 of the kernel's interface, one for each controller in version 1.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		return []string{cgroupMount}, nil
	}
	found, err := filepath.Glob(filepath.Join(cgroupMount, "*", "cgroup.procs"))
	if err != nil || len(found) == 0 {
		return nil, errors.Join(fmt.Errorf("no control groups at %s", cgroupMount), err)
	}
	var trees []string
	for _, file := range found {
		tree, err := filepath.EvalSymlinks(filepath.Dir(file)) // cpu and cpuacct may be one
		if err != nil {
			return nil, fmt.Errorf("finding a tree of control groups: %w", err)
		}
		trees = append(trees, tree)
	}
	slices.Sort(trees)
	return slices.Compact(trees), nil
}

// makeCgroup makes a group of that name, a path, in all trees.
func makeCgroup(name string) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		group := tree
		for part := range strings.SplitSeq(name, "/") {
			group = filepath.Join(group, part)
			if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("making a control group: %w", err)
			}
			if err := inheritCPUs(group); err != nil {
				return err
			}
			// A real node's pods weigh as much as its processors, all daemons of the system together as one. Here each of these
			// counts by itself, with nice value -5 in hack/test.sh, so the pods get the weight of some ten such processes.
			// Each version has one of the files.
			_ = os.WriteFile(filepath.Join(group, "cpu.shares"), []byte("32768"), 0o644)
			_ = os.WriteFile(filepath.Join(group, "cpu.weight"), []byte("3200"), 0o644)
		}
	}
	return nil
}

// inheritCPUs gives a group its parent's CPUs: in version 1 one without can have no processes.
func inheritCPUs(group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		path := filepath.Join(group, file)
		text, err := os.ReadFile(path)
		if err != nil || len(strings.TrimSpace(string(text))) > 0 {
			continue // not of that controller, or it has some
		}
		text, err = os.ReadFile(filepath.Join(filepath.Dir(group), file))
		if err != nil || len(strings.TrimSpace(string(text))) == 0 {
			continue // version 2, where empty means the parent's
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("setting up a control group: %w", err)
		}
	}
	return nil
}

// removeCgroup removes a group and all below it. Their processes have been killed; a group is busy until the last of them
// is gone.
func removeCgroup(name string) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if err := removeTree(filepath.Join(tree, name)); err != nil {
			return err
		}
	}
	return nil
}

func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeTree(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	for range 500 {
		if err = syscall.Rmdir(path); !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the kernel sends no event when it is done
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("removing control group %s: %w", path, err)
	}
	return nil
}

// sweepCgroups removes the groups of tests that were killed.
func sweepCgroups() error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		left, err := filepath.Glob(filepath.Join(tree, cgroupPrefix+"*"))
		if err != nil {
			return err
		}
		for _, path := range left {
			number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), cgroupPrefix), "-")
			if pid, err := strconv.Atoi(number); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				if err := removeTree(path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
