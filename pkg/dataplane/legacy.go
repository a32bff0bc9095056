// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A family describes the kernel's rule layout of iptables-legacy for one IP family
// (linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h).
type family struct {
	v6      bool
	names   string // file with the names of the tables
	domain  int
	level   int
	targets int // offset of target_offset in an entry, next_offset follows it
}

func families46() []family {
	return []family{
		{names: "ip_tables_names", domain: unix.AF_INET, level: unix.SOL_IP, targets: 88},
		{v6: true, names: "ip6_tables_names", domain: unix.AF_INET6, level: unix.SOL_IPV6, targets: 140},
	}
}

// Requests of getsockopt, the same for both families.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// tableLimit is the maximum size of a table in bytes. 64 MiB are 300,000 rules.
const tableLimit = 64 << 20

// legacyChains lists the known chains, and the names of all tables. It reads only existing
// tables: the kernel creates a table on reading it, and other programs would conclude that
// the node uses iptables-legacy.
func legacyChains() (chains []Chain, tables []string, err error) {
	for _, f := range families46() {
		names, err := os.ReadFile(proc + "/net/" + f.names)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no iptables-legacy
		}
		if err != nil {
			return chains, tables, fmt.Errorf("reading the names of its tables: %w", err)
		}
		for table := range strings.FieldsSeq(string(names)) {
			if !slices.Contains(tables, table) {
				tables = append(tables, table)
			}
			found, err := f.readKnownChains(table)
			if err != nil {
				return chains, tables, fmt.Errorf("reading its table %s: %w", table, err)
			}
			chains = append(chains, found...)
		}
	}
	return chains, tables, nil
}

// readKnownChains lists the known chains of a table.
func (f family) readKnownChains(table string) ([]Chain, error) {
	wanted := knownChains(table)
	if len(wanted) == 0 {
		return nil, nil
	}
	there, err := f.chains(table)
	if err != nil {
		return nil, err
	}
	var list []Chain
	for _, name := range wanted {
		if slices.Contains(there, name) {
			list = append(list, Chain{V6: f.v6, Table: table, Name: name})
		}
	}
	return list, nil
}

// chains lists the user-defined chains of a table.
func (f family) chains(table string) ([]string, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	for range 3 { // another program may change the table between the two calls
		info := make([]byte, 84)
		copy(info[:31], table)
		if err := getsockopt(fd, f.level, soGetInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > tableLimit {
			return nil, fmt.Errorf("%d bytes of rules exceed the limit", size)
		}
		entries := make([]byte, 40+int(size))
		copy(entries[:31], table)
		binary.NativeEndian.PutUint32(entries[32:], size)
		err := getsockopt(fd, f.level, soGetEntries, entries)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return chainNames(entries[40:], f.targets), nil
	}
	return nil, errors.New("it keeps changing while it is read")
}

func getsockopt(fd, level, name int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// chainNames parses the names of the chains in the entries of a table. A chain begins with
// an entry whose target is ERROR with the chain's name. The last entry of a table has the
// name ERROR itself.
func chainNames(entries []byte, targets int) []string {
	const head, nameAt, errorAt, errorLen = 4, 2, 32, 30
	var names []string
	for len(entries) >= targets+head {
		target := int(binary.NativeEndian.Uint16(entries[targets:]))
		next := int(binary.NativeEndian.Uint16(entries[targets+2:]))
		if next < targets+head || next > len(entries) {
			return names
		}
		if target+errorAt+errorLen <= next && cstring(entries[target+nameAt:target+errorAt]) == "ERROR" {
			if name := cstring(entries[target+errorAt : target+errorAt+errorLen]); name != "ERROR" {
				names = append(names, name)
			}
		}
		entries = entries[next:]
	}
	return names
}

// cstring returns b up to its first zero byte.
func cstring(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
