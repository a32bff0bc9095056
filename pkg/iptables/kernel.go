// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A kernel tells about the tables of a variant without running a program.
type kernelTables interface {
	// there says whether a chain is there, for a built-in one too.
	chainExists(v6 bool, table, name string) (bool, error)
	// fingerprint is a short text for each family that changes whenever rules of ours, or of the built-in
	// chains that we hang on, come or go.
	fingerprint() ([2]string, error)
	close() error
}

// legacyKernel reads the tables of iptables-legacy by socket options. It never names
// a table that is not there: that would make it.
type legacyKernel struct {
	space *netns
	fd4   int
	fd6   int // -1 without IPv6
}

// The socket options of x_tables, the same of both families.
const (
	soGetInfo   = 64 // IPT_SO_GET_INFO
	infoNameLen = 32
	infoLen     = 84 // struct ipt_getinfo
)

func openLegacy(in *netns) (*legacyKernel, error) {
	fd4, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	fd6, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		fd6 = -1
	}
	return &legacyKernel{space: in, fd4: fd4, fd6: fd6}, nil
}

func (k *legacyKernel) close() error {
	if k.fd6 >= 0 {
		_ = unix.Close(k.fd6)
	}
	return unix.Close(k.fd4)
}

// names are the tables that are there.
func (k *legacyKernel) tableNames(v6 bool) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	var names []string
	err := k.space.do(func() error {
		text, err := os.ReadFile(path)
		names = strings.Fields(string(text))
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("reading which tables there are: %w: only the user root may", err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which tables there are: %w", err)
	}
	return names, nil
}

// there only knows tables: each has all its built-in chains.
func (k *legacyKernel) chainExists(v6 bool, table, _ string) (bool, error) {
	names, err := k.tableNames(v6)
	return slices.Contains(names, table), err
}

func (k *legacyKernel) fingerprint() (marks [2]string, err error) {
	for i, family := range []struct {
		v6        bool
		fd, level int
	}{{false, k.fd4, unix.SOL_IP}, {true, k.fd6, unix.SOL_IPV6}} {
		names, err := k.tableNames(family.v6)
		if err != nil {
			return marks, err
		}
		for _, table := range tables() {
			if family.fd < 0 || !slices.Contains(names, table) {
				continue
			}
			info, err := tableInfo(family.fd, family.level, table)
			if err != nil {
				return marks, err
			}
			marks[i] += fmt.Sprintf("%s %x\n", table, info)
		}
	}
	return marks, nil
}

// tableInfo is a table's number of rules, their size and where the built-in chains begin.
func tableInfo(fd, level int, table string) ([]byte, error) {
	info := make([]byte, infoLen)
	copy(info[:infoNameLen-1], table)
	length := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), soGetInfo,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("reading the size of table %s: %w", table, errno)
	}
	return info[:length], nil
}
