// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// reconcile compares the kernel with the configuration and changes what differs. With
// takeOver it also takes what another agent owns; otherwise it leaves that alone. It
// returns the changes, and an error for what still differs.
func (l *Link) reconcile(ctx context.Context, k kernel, takeOver bool) (changes []string, err error) {
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	defer l.release()
	if l.removed {
		return nil, nil
	}
	p := &pass{Link: l, k: k, takeOver: takeOver, missing: map[netip.Addr]error{}}
	err = p.ensureLink()
	if err == nil {
		err = p.ensureAddresses()
	}
	if takeOver && len(p.held) > 0 {
		if swept := p.removeLeftovers(); err == nil { // a missing address is the more useful error
			err = swept
		}
	}
	l.record(p, err)
	return p.changes, err
}

// record stores the result of a pass in the stats.
func (l *Link) record(p *pass, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.stats
	s.LastError, s.Missing, s.Held = "", nil, p.held
	if p.dev.index != 0 {
		s.Kind = p.dev.kind
	}
	if p.reason != "" {
		s.Reason = p.reason
	}
	s.StoodDown = p.ownedByOther
	if err == nil {
		return
	}
	s.LastError = err.Error()
	for _, a := range l.config.Addresses {
		if !slices.Contains(p.held, a) {
			s.Missing = append(s.Missing, fmt.Sprintf("%s: %s", a, cmp.Or(p.missing[a], err)))
		}
	}
}

// A pass is one run of reconcile.
type pass struct {
	*Link
	k        kernel
	takeOver bool

	dev          device               // the link that holds the addresses
	ownedByOther bool                 // dev, or an address on it, belongs to another agent and stays so
	reason       string               // why a preferred kind is not used
	changes      []string             // changes made so far
	held         []netip.Addr         // addresses that answer
	missing      map[netip.Addr]error // why the other addresses do not answer
}

func (p *pass) changed(format string, args ...any) {
	p.changes = append(p.changes, fmt.Sprintf(format, args...))
}

// ensureLink finds or creates the link for the addresses.
func (p *pass) ensureLink() error {
	if p.config.Kind == Loopback || p.currentKind() == Loopback {
		return p.useLoopback()
	}
	dev, err := p.k.link(p.config.Name)
	if errors.Is(err, errNoLink) {
		return p.createLink()
	}
	if err != nil {
		return fmt.Errorf("reading link %s: %w", p.config.Name, err)
	}
	if _, ours := ownerOf(dev.alias); ours && dev.kind == Bridge && p.noBridge() {
		p.reason = bridgeRefused // removeLeftovers removes the bridge once lo has the addresses
		return p.useLoopback()
	}
	return p.adopt(dev)
}

// bridgeRefused is why a bridge is not used.
const bridgeRefused = "bridge: the data plane takes its addresses for another network's"

// noBridge reports whether this pass chooses the kind of link, and must not choose a bridge.
func (p *pass) noBridge() bool {
	return p.takeOver && p.config.Kind == Auto && p.config.NoBridge != nil && p.config.NoBridge()
}

// currentKind returns the kind of the link that a pass without takeOver keeps; empty: none yet.
func (p *pass) currentKind() Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.takeOver {
		return ""
	}
	return p.stats.Kind
}

func (p *pass) useLoopback() error {
	dev, err := p.k.link("lo")
	if err != nil {
		return fmt.Errorf("reading lo: %w", err)
	}
	if !dev.up { // the node has to set it up; without it there is no DNS to serve
		return fmt.Errorf("reading lo: %w", errDown)
	}
	p.dev = dev
	return nil
}

// createLink creates the link. With Auto it tries the next kind if the kernel does not support or does not permit one: even
// without the permission to create links, lo can be used if it has the addresses already.
func (p *pass) createLink() error {
	var reasons []string
	var failed error
	for _, kind := range p.kindsToTry() {
		if kind == Loopback {
			p.reason = strings.Join(reasons, "; ")
			return p.useLoopback()
		}
		if kind == Bridge && p.noBridge() {
			reasons = append(reasons, bridgeRefused)
			continue
		}
		err := p.k.createLink(p.config.Name, kind)
		if errors.Is(err, errExists) { // another program was faster: treat its link like an existing one
			return p.adoptCreated()
		}
		if err == nil {
			p.changed("created %s %s", kind, p.config.Name)
			p.reason = strings.Join(reasons, "; ")
			return p.adoptCreated()
		}
		failed = fmt.Errorf("creating %s %s: %w", kind, p.config.Name, err)
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrNotPermitted) {
			return failed
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", kind, err))
	}
	return failed
}

// kindsToTry returns the kinds of link that createLink may create, in the order of preference.
func (p *pass) kindsToTry() []Kind {
	if p.config.Kind != Auto {
		return []Kind{p.config.Kind}
	}
	if chosen := p.currentKind(); chosen != "" {
		return []Kind{chosen} // trying the others again would make the kernel look for modules each time
	}
	return []Kind{Dummy, Bridge, Loopback}
}

// adoptCreated adopts the link that this agent or another program has just created.
func (p *pass) adoptCreated() error {
	dev, err := p.k.link(p.config.Name)
	if errors.Is(err, errNoLink) {
		err = errLinkGone
	}
	if err != nil {
		return fmt.Errorf("reading link %s: %w", p.config.Name, err)
	}
	return p.adopt(dev)
}

// adopt makes this agent the owner of dev and sets dev up. It does not change a foreign link or, without takeOver, another agent's.
func (p *pass) adopt(dev device) error {
	if err := p.checkAdoptable(dev); err != nil {
		return fmt.Errorf("adopting link %s: %w", p.config.Name, err)
	}
	p.dev = dev
	owner, ours := ownerOf(dev.alias)
	switch {
	case ours && owner == p.config.Owner:
	case ours && !p.takeOver:
		p.ownedByOther = true
		return nil
	default:
		if !ours && dev.alias != "" {
			return fmt.Errorf("adopting link %s: its alias is %q: %w", dev.name, dev.alias, ErrForeign)
		}
		err := p.k.setAlias(dev.index, aliasPrefix+p.config.Owner)
		// Without NET_ADMIN the agent can still use a link that another program maintains.
		if err != nil && !errors.Is(err, ErrNotPermitted) {
			return fmt.Errorf("setting the alias of link %s: %w", dev.name, err)
		}
		if err == nil {
			p.changed("adopted %s", dev.name)
		}
	}
	if dev.up {
		return nil
	}
	if err := p.k.setUp(dev.index); err != nil {
		return fmt.Errorf("setting link %s up: %w", dev.name, err)
	}
	p.changed("set %s up", dev.name)
	return nil
}

// checkAdoptable returns ErrForeign unless dev has the configured name and a kind that agents create, and is an agent's or unused.
func (p *pass) checkAdoptable(dev device) error {
	switch {
	case dev.name != p.config.Name:
		return fmt.Errorf("it is an alternative name of link %s: %w", dev.name, ErrForeign)
	case dev.kind != Dummy && dev.kind != Bridge:
		return fmt.Errorf("it is a link of kind %s: %w", dev.kind, ErrForeign)
	}
	if _, ours := ownerOf(dev.alias); ours {
		return nil
	}
	if dev.master != 0 {
		return fmt.Errorf("it is a port of another link: %w", ErrForeign)
	}
	if dev.kind == Bridge {
		if n, err := p.k.portCount(dev.index); err != nil {
			return err
		} else if n > 0 {
			return fmt.Errorf("it is a bridge with %d ports: %w", n, ErrForeign)
		}
	}
	return p.checkUnused(dev)
}

// checkUnused returns ErrForeign if another program uses dev, which has no alias: a
// bridge with an address may wait for its first port, a dummy may hold addresses of
// Services. A link that also holds a configured address is another DNS cache's, and may be adopted.
func (p *pass) checkUnused(dev device) error {
	have, err := p.k.addresses(dev.index)
	if err != nil {
		return fmt.Errorf("reading its addresses: %w", err)
	}
	var other netip.Prefix
	wanted := false
	for _, h := range have {
		switch a := h.prefix.Addr(); {
		case slices.Contains(p.config.Addresses, a):
			wanted = true
		case !a.Is6() || !a.IsLinkLocalUnicast(): // the kernel adds a link-local one to each link
			other = h.prefix
		}
	}
	if !other.IsValid() || wanted {
		return nil
	}
	return fmt.Errorf("it has the address %s: %w", other, ErrForeign)
}

// ensureAddresses puts the configured addresses on p.dev.
func (p *pass) ensureAddresses() error {
	have, err := p.k.addresses(p.dev.index)
	if err != nil {
		return fmt.Errorf("reading the addresses of %s: %w", p.dev.name, err)
	}
	var missing error
	for _, a := range p.config.Addresses {
		i := slices.IndexFunc(have, func(h address) bool { return h.prefix.Addr() == a })
		if i < 0 {
			err = p.addAddress(a)
		} else {
			err = p.repairAddress(have[i])
		}
		if errors.Is(err, errLinkGone) {
			return fmt.Errorf("adding %s to %s: %w", a, p.dev.name, err)
		}
		if err == nil {
			p.held = append(p.held, a)
			continue
		}
		p.missing[a] = err
		err = fmt.Errorf("%s address %s is missing: %w", map[bool]string{true: "IPv6", false: "IPv4"}[a.Is6()], a, err)
		if missing != nil {
			err = fmt.Errorf("%w; %w", missing, err)
		}
		missing = err
	}
	return cmp.Or(missing, p.pruneAddresses(have)) // a missing address is the more useful error
}

func (p *pass) addAddress(a netip.Addr) error {
	if p.ownedByOther {
		return fmt.Errorf("it is not on %s: %w", p.dev.name, ErrOwned)
	}
	if err := p.k.putAddress(p.dev.index, a, p.mark, false); err != nil && !errors.Is(err, errExists) {
		return fmt.Errorf("adding it to %s: %w", p.dev.name, err)
	}
	p.changed("added %s", a)
	return nil
}

// repairAddress makes an existing address usable. On lo the mark is the only sign of the owner: with takeOver, repairAddress
// replaces another agent's mark there; otherwise it sets ownedByOther.
func (p *pass) repairAddress(h address) error {
	a := h.prefix.Addr()
	onLo := p.dev.index == loIndex
	mine := h.prefix.IsSingleIP() && (!onLo || isMark(h.mark)) && !p.ownedByOther
	if h.failed && mine {
		if err := p.k.removeAddress(p.dev.index, h.prefix); err != nil {
			return fmt.Errorf("removing the address that failed duplicate detection from %s: %w", p.dev.name, err)
		}
		return p.addAddress(a)
	}
	if h.tentative || h.failed {
		return errTentative
	}
	if !onLo || !isMark(h.mark) || h.mark == p.mark {
		return nil
	}
	if !p.takeOver {
		p.ownedByOther = true
		return nil
	}
	// An error does not matter: the address answers without the mark as well.
	if err := p.k.putAddress(p.dev.index, a, p.mark, true); err == nil {
		p.changed("adopted %s", a)
	}
	return nil
}

// pruneAddresses removes, only with takeOver, addresses that an agent with another configuration left on the link.
func (p *pass) pruneAddresses(have []address) error {
	if !p.takeOver {
		return nil
	}
	for _, h := range have {
		if !isMark(h.mark) || slices.Contains(p.config.Addresses, h.prefix.Addr()) {
			continue
		}
		if err := p.k.removeAddress(p.dev.index, h.prefix); err != nil {
			return fmt.Errorf("removing %s from %s: %w", h.prefix, p.dev.name, err)
		}
		p.changed("removed %s", h.prefix)
	}
	return nil
}

// removeLeftovers removes what agents left on links that the configuration no longer
// names: on lo, or on a link of another name.
func (p *pass) removeLeftovers() error {
	var removed []string
	var err error
	if p.dev.index == loIndex {
		removed, err = removeLink(p.k, p.config.Name, "")
	} else {
		removed, err = removeMarked(p.k, func(address) bool { return true })
	}
	if err == nil {
		var renamed []string
		renamed, err = removeOtherLinks(p.k, p.config.Name, p.config.Addresses)
		removed = append(removed, renamed...)
	}
	for _, r := range removed {
		p.changed("removed %s", r)
	}
	if errors.Is(err, ErrNotPermitted) {
		return nil // leftovers do no harm
	}
	return err
}
