// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// filterName marks the filters of agents, also of one that was killed: filters of clsact outlive their process. They then let
// everything pass, because nothing renews their heartbeat.
const filterName = "node-cache"

// filterPriority is after the filters of CNI plugins, which begin at 1.
const filterPriority = 0xc000

// A filter is a program at a clsact qdisc, for kernels without tcx. The handle of a filter is the ID of its agent's program: a
// successor attaches its filter beside that of its predecessor, and neither detaches the other's by mistake.
type filter struct {
	netlink.BpfFilter

	ownsQdisc bool // an agent added the qdisc
}

// attachFilter attaches a program. It removes the filters of other agents, which are dead or about to end.
func attachFilter(index int, p *ebpf.Program, parent uint32) (*filter, error) {
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	id, _ := info.ID() // every kernel with clsact filters has IDs
	f := &filter{BpfFilter: netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: parent, Handle: uint32(id), Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: filterName, DirectAction: true,
	}}
	err = netlink.QdiscAdd(clsactOf(index))
	f.ownsQdisc = err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("adding clsact: %w", err)
	}
	if err := netlink.FilterReplace(&f.BpfFilter); err != nil {
		return nil, fmt.Errorf("adding a filter: %w", err)
	}
	list, _, _ := filtersAt(index, parent) // a filter that is not found lets everything pass once its agent has ended
	for _, other := range list {
		if other.Attrs().Handle != f.Handle {
			f.ownsQdisc = true           // the other agent may have added the qdisc
			_ = netlink.FilterDel(other) // the filter may be gone
		}
	}
	return f, nil
}

func clsactOf(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// filtersAt returns the filters of agents at one side of an interface, and the number of those of other programs.
func filtersAt(index int, parent uint32) (agents []netlink.Filter, others int, err error) {
	list, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, parent)
	for _, f := range list {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == filterName && bpf.Priority == filterPriority {
			agents = append(agents, f)
		} else {
			others++
		}
	}
	return agents, others, err
}

// detach removes the filter, and the qdisc if an agent added it and nothing else uses it.
func (f *filter) detach() error {
	err := netlink.FilterDel(&f.BpfFilter)
	if f.ownsQdisc {
		err = errors.Join(err, removeUnused(f.LinkIndex))
	}
	return err
}

// release does nothing: the filter ends with its interface, whose index another interface may have by now.
func (*filter) release() error { return nil }

// problem looks for the filter. After an error there is none: the filter may still be there.
func (f *filter) problem() string {
	list, _, err := filtersAt(f.LinkIndex, f.Parent)
	if err != nil || slices.ContainsFunc(list, func(other netlink.Filter) bool { return other.Attrs().Handle == f.Handle }) {
		return ""
	}
	return problemDetached
}

// follows reports whether there are other filters: most begin at the first priority.
func (f *filter) follows() bool {
	_, others, err := filtersAt(f.LinkIndex, f.Parent)
	return err == nil && others > 0
}

// hasFilters reports whether an interface has filters of others at egress; false after an error.
func hasFilters(index int) bool {
	_, others, err := filtersAt(index, netlink.HANDLE_MIN_EGRESS)
	return err == nil && others > 0
}

// filteredLinks returns the interfaces for which hasFilters. Interfaces without clsact cost one list for all of them.
func filteredLinks() map[int]bool {
	filtered := map[int]bool{}
	list, _ := netlink.QdiscList(nil) // the part of an interrupted list is enough: there is another one soon
	for _, q := range list {
		if index := q.Attrs().LinkIndex; q.Type() == "clsact" && hasFilters(index) {
			filtered[index] = true
		}
	}
	return filtered
}

// removeUnused removes the clsact qdisc of an interface unless it has filters.
func removeUnused(index int) error {
	for _, parent := range sides() {
		agents, others, err := filtersAt(index, parent)
		if err != nil || len(agents)+others > 0 {
			return err
		}
	}
	return netlink.QdiscDel(clsactOf(index))
}

func sides() [2]uint32 { return [2]uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} }

// Cleanup removes the filters of agents in this network namespace, running or not. It returns what it removed.
func Cleanup() (removed []string, err error) {
	list, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("cleanup: listing the interfaces: %w", err)
	}
	var errs []error
	for _, dev := range list {
		found, err := cleanUp(dev.Attrs().Index)
		if found {
			removed = append(removed, "filters on "+dev.Attrs().Name)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("cleanup: removing the filters on %s: %w", dev.Attrs().Name, err))
		}
	}
	return removed, errors.Join(errs...)
}

// cleanUp removes the filters of agents on an interface, and then the qdisc if it has no other filters.
func cleanUp(index int) (found bool, err error) {
	for _, parent := range sides() {
		agents, _, err := filtersAt(index, parent)
		if err != nil {
			return found, err
		}
		for _, f := range agents {
			if err := netlink.FilterDel(f); err != nil {
				return found, err
			}
			found = true
		}
	}
	if !found {
		return false, nil
	}
	return true, removeUnused(index)
}
