// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// removeOwned removes the link called name if it belongs to an agent for which ours is
// true, and the marked addresses on lo for which drop is true. It returns ErrOwned if
// the link belongs to another agent.
func removeOwned(k kernel, name string, ours func(owner string) bool, drop func(address) bool) (removed []string, err error) {
	if name != "" && name != "lo" {
		was, err := removeLink(k, name, ours)
		if err != nil {
			return nil, err
		}
		if was {
			removed = append(removed, "link "+name)
		}
	}
	list, err := k.addresses(loIndex)
	if err != nil {
		return removed, fmt.Errorf("reading the addresses of lo: %w", err)
	}
	for _, a := range list {
		if !isMark(a.mark) || !drop(a) {
			continue
		}
		if err := k.removeAddress(loIndex, a.prefix); err != nil {
			return removed, fmt.Errorf("removing %s from lo: %w", a.prefix, err)
		}
		removed = append(removed, "address "+a.prefix.String()+" on lo")
	}
	return removed, nil
}

// removeOtherLinks removes the links of agents that have one of addrs (nil: any address
// with a mark) and another name than name: an older configuration used them.
func removeOtherLinks(k kernel, name string, addrs []netip.Addr) (removed []string, err error) {
	list, err := k.addresses(0)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of all links: %w", err)
	}
	for _, a := range list {
		if a.index == loIndex || !isMark(a.mark) || addrs != nil && !slices.Contains(addrs, a.prefix.Addr()) {
			continue
		}
		was, at, err := removeLinkUnless(k, a.index, name)
		if err != nil {
			return removed, fmt.Errorf("reading the link that has %s: %w", a.prefix, err)
		}
		if was {
			removed = append(removed, "link "+at)
		}
	}
	return removed, nil
}

// removeLinkUnless removes the link with that index if it is an agent's and not called keep.
func removeLinkUnless(k kernel, index int, keep string) (removed bool, name string, err error) {
	name, err = k.linkName(index)
	if errors.Is(err, errLinkGone) || err == nil && name == keep { // gone: removed with another of its addresses
		return false, name, nil
	}
	if err == nil {
		removed, err = removeLink(k, name, func(string) bool { return true })
	}
	return removed, name, err
}

func removeLink(k kernel, name string, ours func(owner string) bool) (removed bool, err error) {
	dev, err := k.link(name)
	if errors.Is(err, errNoLink) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading link %s: %w", name, err)
	}
	owner, agents := ownerOf(dev.alias)
	if !agents || dev.name != name {
		return false, nil
	}
	if !ours(owner) {
		return false, fmt.Errorf("removing link %s of agent %s: %w", name, owner, ErrOwned)
	}
	if err := k.deleteLink(dev.index); err != nil && !errors.Is(err, errLinkGone) {
		return false, fmt.Errorf("removing link %s: %w", name, err)
	}
	return true, nil
}

// Cleanup removes what any agent left, running or not: the link called name if an agent
// created or adopted it, links of other names that hold an agent's addresses, and
// addresses on lo that an agent added and that are in addrs (nil: all of them). It
// ignores what other programs created. It returns what it removed.
func Cleanup(_ context.Context, name string, addrs []netip.Addr) (removed []string, err error) {
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()
	return cleanup(k, name, addrs)
}

func cleanup(k kernel, name string, addrs []netip.Addr) (removed []string, err error) {
	removed, err = removeOwned(k, name, func(string) bool { return true },
		func(a address) bool { return addrs == nil || slices.Contains(addrs, a.prefix.Addr()) })
	if err != nil {
		return removed, err
	}
	renamed, err := removeOtherLinks(k, name, nil)
	return append(removed, renamed...), err
}
