// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// hold puts the wanted addresses on p.dev.
func (p *pass) hold() error {
	have, err := p.k.addresses(p.dev.index)
	if err != nil {
		return fmt.Errorf("reading the addresses of %s: %w", p.dev.name, err)
	}
	var missing []Missing
	for _, a := range p.config.Addresses {
		i := slices.IndexFunc(have, func(h address) bool { return h.prefix.Addr() == a })
		if i < 0 {
			err = p.add(a)
		} else {
			err = p.keep(have[i])
		}
		if errors.Is(err, errVanished) {
			return fmt.Errorf("adding %s to %s: %w", a, p.dev.name, err)
		}
		if err != nil {
			missing = append(missing, Missing{Addr: a, Err: err})
		} else {
			p.held = append(p.held, a)
		}
	}
	err = p.prune(have)
	if len(missing) > 0 { // which says more
		return &MissingError{Missing: missing, Held: len(p.held)}
	}
	return err
}

func (p *pass) add(a netip.Addr) error {
	if p.another {
		return fmt.Errorf("it is not on %s: %w", p.dev.name, ErrOwned)
	}
	if err := p.k.put(p.dev.index, a, p.mark, false); err != nil && !errors.Is(err, errExists) {
		return fmt.Errorf("adding it to %s: %w", p.dev.name, err)
	}
	p.did("added %s", a)
	return nil
}

// keep makes an address that is there usable, and on lo, where the mark is all there
// is to know the owner by, this agent's if it was another's.
func (p *pass) keep(h address) error {
	a := h.prefix.Addr()
	onLo := p.dev.index == loIndex
	mine := h.prefix.IsSingleIP() && (!onLo || marked(h.mark)) && !p.another
	if h.failed && mine {
		if err := p.k.drop(p.dev.index, h.prefix); err != nil {
			return fmt.Errorf("taking the failed one from %s: %w", p.dev.name, err)
		}
		return p.add(a)
	}
	if h.tentative || h.failed {
		return errTentative
	}
	if !onLo || !marked(h.mark) || h.mark == p.mark {
		return nil
	}
	if !p.take {
		p.another = true
		return nil
	}
	// One that is there and answers does without.
	if err := p.k.put(p.dev.index, a, p.mark, true); err == nil {
		p.did("took %s", a)
	}
	return nil
}

// prune takes away what an agent with other addresses left on the link.
func (p *pass) prune(have []address) error {
	if !p.take {
		return nil
	}
	for _, h := range have {
		if !marked(h.mark) || slices.Contains(p.config.Addresses, h.prefix.Addr()) {
			continue
		}
		if err := p.k.drop(p.dev.index, h.prefix); err != nil {
			return fmt.Errorf("taking %s from %s: %w", h.prefix, p.dev.name, err)
		}
		p.did("took %s away", h.prefix)
	}
	return nil
}

// sweep takes away what agents left where the addresses are not any more: of another
// kind or name, the former one.
func (p *pass) sweep() error {
	all := func(string) bool { return true }
	none := func(address) bool { return false }
	var removed []string
	var err error
	if p.dev.index == loIndex {
		removed, err = clean(p.k, p.config.Name, all, none)
	} else {
		removed, err = clean(p.k, "", nil, func(address) bool { return true })
	}
	if err == nil {
		var renamed []string
		renamed, err = cleanRenamed(p.k, p.config.Name, p.config.Addresses)
		removed = append(removed, renamed...)
	}
	for _, r := range removed {
		p.did("took %s away", r)
	}
	if errors.Is(err, ErrNotPermitted) {
		return nil // nothing is missing for it
	}
	return err
}

// clean removes the link called name if it is an agent's of whom ours says yes, and of
// the marked addresses of lo those of which drop says yes. ErrOwned: the link is of
// another agent.
func clean(k kernel, name string, ours func(owner string) bool, drop func(address) bool) (removed []string, err error) {
	if name != "" && name != "lo" {
		was, err := cleanLink(k, name, ours)
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
		if !marked(a.mark) || !drop(a) {
			continue
		}
		if err := k.drop(loIndex, a.prefix); err != nil {
			return removed, fmt.Errorf("taking %s from lo: %w", a.prefix, err)
		}
		removed = append(removed, "address "+a.prefix.String()+" of lo")
	}
	return removed, nil
}

// cleanRenamed removes the links of agents that have one of addrs (nil: any address that
// an agent put there) and are not called name: the configuration was another one then.
func cleanRenamed(k kernel, name string, addrs []netip.Addr) (removed []string, err error) {
	list, err := k.addresses(0)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of all links: %w", err)
	}
	for _, a := range list {
		if a.index == loIndex || !marked(a.mark) || addrs != nil && !slices.Contains(addrs, a.prefix.Addr()) {
			continue
		}
		was, at, err := cleanUnless(k, a.index, name)
		if err != nil {
			return removed, fmt.Errorf("looking at who has %s: %w", a.prefix, err)
		}
		if was {
			removed = append(removed, "link "+at)
		}
	}
	return removed, nil
}

// cleanUnless removes the link with that index if it is an agent's and not called keep.
func cleanUnless(k kernel, index int, keep string) (removed bool, name string, err error) {
	name, err = k.name(index)
	if errors.Is(err, errVanished) || err == nil && name == keep { // it went with another address of it
		return false, name, nil
	}
	if err == nil {
		removed, err = cleanLink(k, name, func(string) bool { return true })
	}
	return removed, name, err
}

func cleanLink(k kernel, name string, ours func(owner string) bool) (removed bool, err error) {
	dev, err := k.link(name)
	if errors.Is(err, errNone) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at link %s: %w", name, err)
	}
	owner, agents := ownerOf(dev.alias)
	if !agents || dev.name != name {
		return false, nil
	}
	if !ours(owner) {
		return false, fmt.Errorf("leaving link %s to %s: %w", name, owner, ErrOwned)
	}
	if err := k.destroy(dev.index); err != nil && !errors.Is(err, errVanished) {
		return false, fmt.Errorf("removing link %s: %w", name, err)
	}
	return true, nil
}

// Cleanup removes what any agent left, dead or alive: the link called name if an agent
// made or adopted it, links of other names that agents put addresses on, and of addrs
// those that an agent put on lo (nil: all that one did). What others made stays, and
// that is no error. It says what it removed.
func Cleanup(_ context.Context, name string, addrs []netip.Addr) (removed []string, err error) {
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()
	return cleanup(k, name, addrs)
}

func cleanup(k kernel, name string, addrs []netip.Addr) (removed []string, err error) {
	removed, err = clean(k, name, func(string) bool { return true },
		func(a address) bool { return addrs == nil || slices.Contains(addrs, a.prefix.Addr()) })
	if err != nil {
		return removed, err
	}
	renamed, err := cleanRenamed(k, name, nil)
	return append(removed, renamed...), err
}
