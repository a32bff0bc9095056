// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// removeLink removes the link called name if it belongs to the agent called owner, or, if
// owner is empty, to any agent. It returns ErrOwned if it belongs to another agent.
func removeLink(k kernel, name, owner string) (removed []string, err error) {
	dev, err := k.link(name)
	if errors.Is(err, errNoLink) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading link %s: %w", name, err)
	}
	now, agents := ownerOf(dev.alias)
	if !agents || dev.name != name {
		return nil, nil
	}
	if owner != "" && now != owner {
		return nil, fmt.Errorf("removing link %s of agent %s: %w", name, now, ErrOwned)
	}
	if err := k.deleteLink(dev.index); err != nil && !errors.Is(err, errLinkGone) {
		return nil, fmt.Errorf("removing link %s: %w", name, err)
	}
	return []string{"link " + name}, nil
}

// removeMarked removes the marked addresses on lo for which drop is true.
func removeMarked(k kernel, drop func(address) bool) (removed []string, err error) {
	list, err := k.addresses(loIndex)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of lo: %w", err)
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

// removeOtherLinks removes agents' links that an older configuration used: those that have
// one of addrs (nil: any address) with an agent's mark, and another name than keep.
func removeOtherLinks(k kernel, keep string, addrs []netip.Addr) (removed []string, err error) {
	list, err := k.addresses(0)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of all links: %w", err)
	}
	for _, a := range list {
		if a.index == loIndex || !isMark(a.mark) || addrs != nil && !slices.Contains(addrs, a.prefix.Addr()) {
			continue
		}
		name, err := k.linkName(a.index)
		if errors.Is(err, errLinkGone) || err == nil && name == keep { // the link was removed for an earlier address in list, or is the one to keep
			continue
		}
		var links []string
		if err == nil {
			links, err = removeLink(k, name, "")
		}
		if err != nil {
			return removed, fmt.Errorf("reading the link that has %s: %w", a.prefix, err)
		}
		removed = append(removed, links...)
	}
	return removed, nil
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
	for _, remove := range []func() ([]string, error){
		func() ([]string, error) { return removeLink(k, name, "") },
		func() ([]string, error) {
			return removeMarked(k, func(a address) bool { return addrs == nil || slices.Contains(addrs, a.prefix.Addr()) })
		},
		func() ([]string, error) { return removeOtherLinks(k, name, nil) },
	} {
		part, err := remove()
		removed = append(removed, part...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}
