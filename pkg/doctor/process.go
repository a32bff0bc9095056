// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A process is a process in /proc.
type process struct {
	dir string
	pid int
}

func processes(proc string) []process {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var list []process
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, process{dir: filepath.Join(proc, e.Name()), pid: pid})
		}
	}
	return list
}

// name returns the name of the program, at most 15 bytes; "" if the process has ended.
func (p process) name() string {
	text, err := os.ReadFile(filepath.Join(p.dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// isMissing reports whether the process lacks a capability, by its number.
func (p process) isMissing(capability uint) (bool, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "status"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return set>>capability&1 == 0, err
		}
	}
	return false, errors.New("no capabilities in the status file")
}

// netns returns the network namespace of the process; "" without permission.
func (p process) netns() string {
	name, err := os.Readlink(filepath.Join(p.dir, "ns/net"))
	if err != nil {
		return ""
	}
	return name
}
