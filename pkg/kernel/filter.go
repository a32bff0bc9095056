// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// filterName marks the filters of an agent, also those of one that was killed: filters of clsact outlive their process.
const filterName = "node-cache"

// filterPriority is after the filters of CNI plugins, which begin at 1.
const filterPriority = 0xc000

// attachFilter attaches a program as a filter of clsact, for kernels without tcx. It replaces the filter of another agent.
func attachFilter(index int, p *ebpf.Program, parent uint32) (detach func() error, err error) {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("adding clsact: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Priority: filterPriority, Protocol: unix.ETH_P_ALL},
		Fd:          p.FD(), Name: filterName, DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return nil, fmt.Errorf("adding a filter: %w", err)
	}
	return func() error { return netlink.FilterDel(filter) }, nil
}
