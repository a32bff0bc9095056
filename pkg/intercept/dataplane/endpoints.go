// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// The map of Cilium that says which addresses are the node's own (bpf/lib/eps.h, the same in 1.15 and 1.20).
const (
	endpointsPin    = "/sys/fs/bpf/tc/globals/cilium_lxc"
	endpointKey     = 20 // bytes: the address in 16, its family, 3 more
	endpointIPv4    = 1
	endpointIPv6    = 2
	endpointFlagsAt = 8 // offset of the flags in a value
	endpointHost    = 1 // the flag of an address of the node
)

// CiliumLocal reports for each address whether Cilium takes it for one of the node. root is a folder that stands for /, such as
// /proc/1/root; it may be empty. The error is [fs.ErrNotExist] if the map is not visible there. It needs root, and CAP_BPF before
// Linux 5.8.
func CiliumLocal(root string, addrs []netip.Addr) (map[netip.Addr]bool, error) {
	m, err := ebpf.LoadPinnedMap(root+endpointsPin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("opening Cilium's map of endpoints: %w", err)
	}
	defer func() { _ = m.Close() }()
	return localIn(m, addrs)
}

// Scopes returns the addresses of this node, and of each whether its scope is host.
func Scopes() (map[netip.Addr]bool, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	scopes := make(map[netip.Addr]bool, len(list))
	for _, l := range list {
		if a, ok := netip.AddrFromSlice(l.IP); ok {
			scopes[a.Unmap()] = l.Scope == int(netlink.SCOPE_HOST)
		}
	}
	return scopes, nil
}

func localIn(m *ebpf.Map, addrs []netip.Addr) (map[netip.Addr]bool, error) {
	if m.KeySize() != endpointKey || m.ValueSize() < endpointFlagsAt+4 {
		return nil, fmt.Errorf("reading Cilium's map of endpoints: keys of %d bytes and values of %d: another layout", m.KeySize(), m.ValueSize())
	}
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		key := make([]byte, endpointKey)
		copy(key, a.AsSlice())
		key[16] = endpointIPv4
		if a.Is6() {
			key[16] = endpointIPv6
		}
		value, err := m.LookupBytes(key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading Cilium's map of endpoints: %w", err)
		}
		local[a] = value != nil && binary.NativeEndian.Uint32(value[endpointFlagsAt:])&endpointHost != 0
	}
	return local, nil
}
