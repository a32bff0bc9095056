// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
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
	domain  int
	level   int
	targets int // offset of target_offset in an entry, next_offset follows it
}

func families46() []family {
	return []family{
		{domain: unix.AF_INET, level: unix.SOL_IP, targets: 88},
		{v6: true, domain: unix.AF_INET6, level: unix.SOL_IPV6, targets: 140},
	}
}

// Requests of getsockopt, the same for both families.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES
	nameLength   = 32 // bytes of a table's name, with a zero byte at the end
	infoLength   = 84 // bytes of struct ipt_getinfo
)

// tableLimit is the maximum size of a table in bytes. 64 MiB are 300,000 rules.
const tableLimit = 64 << 20

// LegacyTables returns the names of the tables of iptables-legacy in the calling thread's
// network namespace; none if the kernel has no iptables-legacy.
func LegacyTables(v6 bool) ([]string, error) {
	file := proc + "/net/ip_tables_names"
	if v6 {
		file = proc + "/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("listing tables: %w: it needs the user root", err)
	case err != nil:
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// LegacyFingerprint returns a text that changes whenever rules are added to or removed from these tables of iptables-legacy.
func LegacyFingerprint(v6 bool, tables []string) (text string, err error) {
	names, err := LegacyTables(v6)
	if err != nil {
		return "", err
	}
	f := families46()[0]
	if v6 {
		f = families46()[1]
	}
	for _, table := range tables {
		if !slices.Contains(names, table) {
			continue // the kernel would create the table on reading it
		}
		info, err := f.info(table)
		if err != nil {
			return "", fmt.Errorf("reading the size of table %s: %w", table, err)
		}
		text += fmt.Sprintf("%s %x\n", table, info)
	}
	return text, nil
}

// info reads the number of rules of an existing table, their size and the offsets of its built-in chains.
func (f family) info(table string) ([]byte, error) {
	info := make([]byte, infoLength)
	copy(info[:nameLength-1], table)
	return info, f.getsockopt(soGetInfo, info)
}

// legacyChains lists the chains that knownChains names, of the tables in only (none: all), and the names of all tables. It reads only existing
// tables: the kernel creates a table on reading it, and other programs would conclude that
// the node uses iptables-legacy.
func legacyChains(only ...string) (chains []Chain, tables []string, err error) {
	for _, f := range families46() {
		names, err := LegacyTables(f.v6)
		if err != nil {
			return chains, tables, err
		}
		for _, table := range names {
			if !slices.Contains(tables, table) {
				tables = append(tables, table)
			}
			if len(only) > 0 && !slices.Contains(only, table) {
				continue
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

// readKnownChains lists those chains of a table that knownChains names.
func (f family) readKnownChains(table string) ([]Chain, error) {
	wanted := knownChains(table)
	if len(wanted) == 0 {
		return nil, nil
	}
	entries, err := f.entries(table)
	if err != nil {
		return nil, err
	}
	there, untracks := chainNames(entries, f.targets), f.untrackedBy(entries)
	var list []Chain
	for _, name := range wanted {
		if slices.Contains(there, name) {
			list = append(list, Chain{V6: f.v6, Table: table, Name: name, Untracks: slices.Contains(untracks, name)})
		}
	}
	return list, nil
}

// entries reads the rules of a table.
func (f family) entries(table string) ([]byte, error) {
	for range 3 { // another program may change the table between the two calls
		info, err := f.info(table)
		if err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > tableLimit {
			return nil, fmt.Errorf("%d bytes of rules exceed the limit", size)
		}
		entries := make([]byte, 40+int(size))
		copy(entries[:nameLength-1], table)
		binary.NativeEndian.PutUint32(entries[nameLength:], size)
		err = f.getsockopt(soGetEntries, entries)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return entries[40:], nil
	}
	return nil, errors.New("it keeps changing while it is read")
}

func (f family) getsockopt(name int, b []byte) error {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Offsets in a target of a rule.
const (
	targetName = 2
	targetData = 32
	targetCT   = "CT"
)

// isNotrack reports whether the data of a target CT says notrack (XT_CT_NOTRACK).
func isNotrack(data []byte) bool { return len(data) >= 2 && binary.NativeEndian.Uint16(data)&1 != 0 }

// chainNames parses the names of the chains in the entries of a table. A chain begins with
// an entry whose target is ERROR with the chain's name. The last entry of a table has the
// name ERROR itself.
func chainNames(entries []byte, targets int) []string {
	var names []string
	for _, target := range rulesOf(entries, targets) {
		if name := chainName(target); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// chainName returns the name of the chain that begins with an entry of this target; empty: none does.
func chainName(target []byte) string {
	const nameLen = 30
	if len(target) < targetData+nameLen || unix.ByteSliceToString(target[targetName:targetData]) != "ERROR" {
		return ""
	}
	if name := unix.ByteSliceToString(target[targetData : targetData+nameLen]); name != "ERROR" {
		return name
	}
	return ""
}

// untrackedBy returns the chains that exempt packets from conntrack by their source.
func (f family) untrackedBy(entries []byte) []string {
	mask, size := 8, 4 // of the source: the field smsk of struct ipt_ip or ip6t_ip6
	if f.v6 {
		mask, size = 32, 16
	}
	var list []string
	chain := ""
	for entry, target := range rulesOf(entries, f.targets) {
		if name := chainName(target); name != "" {
			chain = name
		}
		if len(target) >= targetData && unix.ByteSliceToString(target[targetName:targetData-1]) == targetCT && isNotrack(target[targetData:]) &&
			!isZero(entry[mask:mask+size]) && !slices.Contains(list, chain) {
			list = append(list, chain)
		}
	}
	return list
}

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// rulesOf yields the entries of a table, each with its target, which is empty if the entry says nonsense. The kernel writes them, but
// as what is read may be damaged, it ends at the first entry that does not fit.
func rulesOf(entries []byte, targets int) iter.Seq2[[]byte, []byte] {
	const head = 4
	return func(yield func(entry, target []byte) bool) {
		for len(entries) >= targets+head {
			target := int(binary.NativeEndian.Uint16(entries[targets:]))
			next := int(binary.NativeEndian.Uint16(entries[targets+2:]))
			if next < targets+head || next > len(entries) || !yield(entries[:next], entries[min(target, next):next]) {
				return
			}
			entries = entries[next:]
		}
	}
}
