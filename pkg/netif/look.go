// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// look compares the kernel with what is wanted and changes what differs. With take it
// takes over what is another agent's, else it leaves that alone. It returns what it
// changed, and what is still not as wanted.
func (l *Link) look(ctx context.Context, k kernel, take bool) (changes []string, err error) {
	if err := l.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer l.endTurn()
	if l.isGone() {
		return nil, nil
	}
	p := &pass{Link: l, k: k, take: take}
	err = p.carrier()
	if err == nil {
		err = p.hold()
	}
	if take && len(p.held) > 0 {
		if swept := p.sweep(); err == nil { // a missing address says more
			err = swept
		}
	}
	l.tell(p, err)
	return p.changes, err
}

// tell keeps what a look found.
func (l *Link) tell(p *pass, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.stats
	s.LastError, s.Missing, s.Held = "", nil, p.held
	if p.dev.index != 0 {
		s.Kind = p.dev.kind
		l.took = kindOf(p.dev.kind)
	}
	if p.why != "" {
		s.Why = p.why
	}
	s.StoodDown = p.another
	if err == nil {
		return
	}
	s.LastError = err.Error()
	s.Missing = map[netip.Addr]string{}
	for _, a := range l.config.Addresses {
		if !slices.Contains(p.held, a) {
			s.Missing[a] = err.Error()
		}
	}
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		for _, m := range missing.Missing {
			s.Missing[m.Addr] = m.Err.Error()
		}
	}
}

func (l *Link) isGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// A pass is one look.
type pass struct {
	*Link
	k    kernel
	take bool

	dev     device       // what carries the addresses
	another bool         // dev, or an address on it, is another agent's, and stays it
	why     string       // why it is none of the kinds before it
	changes []string     // what was changed
	held    []netip.Addr // what answers
}

func (p *pass) did(format string, args ...any) {
	p.changes = append(p.changes, fmt.Sprintf(format, args...))
}

// carrier finds or makes what the addresses are to be on.
func (p *pass) carrier() error {
	if p.config.Kind == Loopback || p.chosen() == Loopback {
		return p.loopback()
	}
	dev, err := p.k.link(p.config.Name)
	if errors.Is(err, errNone) {
		return p.make()
	}
	if err != nil {
		return fmt.Errorf("looking at link %s: %w", p.config.Name, err)
	}
	return p.adopt(dev)
}

func (p *pass) chosen() Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.take {
		return Auto
	}
	return p.took
}

func (p *pass) loopback() error {
	dev, err := p.k.link("lo")
	if err != nil {
		return fmt.Errorf("looking at lo: %w", err)
	}
	if !dev.up { // it is the node's to set up, and without it there is no DNS to serve
		return fmt.Errorf("looking at lo: %w", errDown)
	}
	p.dev = dev
	return nil
}

// make makes the link. Auto goes on with the next kind if the kernel lacks one, or the
// right to make any: what is wanted may be on lo already.
func (p *pass) make() error {
	kinds := []Kind{p.config.Kind}
	if chosen := p.chosen(); p.config.Kind == Auto && chosen != Auto {
		kinds = []Kind{chosen} // asking for the others again would have the kernel look for modules each time
	} else if p.config.Kind == Auto {
		kinds = []Kind{Dummy, Bridge, Loopback}
	}
	var why []string
	var failed error
	for _, kind := range kinds {
		if kind == Loopback {
			p.why = strings.Join(why, "; ")
			return p.loopback()
		}
		err := p.k.create(p.config.Name, kind)
		if err == nil {
			p.did("made %s %s", kind, p.config.Name)
			p.why = strings.Join(why, "; ")
		}
		if err == nil || errors.Is(err, errExists) { // who was quicker is looked at as whatever was there before
			return p.made()
		}
		failed = fmt.Errorf("making %s %s: %w", kind, p.config.Name, err)
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrNotPermitted) {
			return failed
		}
		why = append(why, fmt.Sprintf("%s: %v", kind, err))
	}
	return failed
}

func (p *pass) made() error {
	dev, err := p.k.link(p.config.Name)
	if errors.Is(err, errNone) {
		err = errVanished
	}
	if err != nil {
		return fmt.Errorf("looking at link %s: %w", p.config.Name, err)
	}
	return p.adopt(dev)
}

// adopt makes dev the agent's own, unless it is something else or another's.
func (p *pass) adopt(dev device) error {
	if err := p.fit(dev); err != nil {
		return fmt.Errorf("taking link %s: %w", p.config.Name, err)
	}
	p.dev = dev
	owner, ours := ownerOf(dev.alias)
	switch {
	case ours && owner == p.config.Owner:
	case ours && !p.take:
		p.another = true
		return nil
	default:
		if !ours && dev.alias != "" {
			return fmt.Errorf("taking link %s: its alias is %q: %w", dev.name, dev.alias, ErrForeign)
		}
		err := p.k.setAlias(dev.index, aliasPrefix+p.config.Owner)
		// Without the right, what others keep for the agent may do. It is not its own then.
		if err != nil && !errors.Is(err, ErrNotPermitted) {
			return fmt.Errorf("naming the owner of link %s: %w", dev.name, err)
		}
		if err == nil {
			p.did("took %s", dev.name)
		}
	}
	if dev.up {
		return nil
	}
	if err := p.k.setUp(dev.index); err != nil {
		return fmt.Errorf("setting link %s up: %w", dev.name, err)
	}
	p.did("set %s up", dev.name)
	return nil
}

// fit says whether dev is of a kind that an agent makes.
func (p *pass) fit(dev device) error {
	switch kind := kindOf(dev.kind); {
	case dev.name != p.config.Name:
		return fmt.Errorf("that is another name of link %s: %w", dev.name, ErrForeign)
	case kind != Dummy && kind != Bridge:
		return fmt.Errorf("it is a link of kind %s: %w", dev.kind, ErrForeign)
	}
	if _, ours := ownerOf(dev.alias); ours {
		return nil
	}
	if dev.master != 0 {
		return fmt.Errorf("it is a port of another link: %w", ErrForeign)
	}
	if kindOf(dev.kind) == Bridge {
		if n, err := p.k.ports(dev.index); err != nil {
			return err
		} else if n > 0 {
			return fmt.Errorf("it is a bridge with %d ports: %w", n, ErrForeign)
		}
	}
	return p.idle(dev)
}

// idle says whether nobody else uses dev, which has no alias: a bridge with an address
// may wait for its first port, a dummy hold the addresses of services. One that holds an
// address of the agent's besides is another node cache's.
func (p *pass) idle(dev device) error {
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
		case !a.Is6() || !a.IsLinkLocalUnicast(): // the kernel gives that to each link
			other = h.prefix
		}
	}
	if !other.IsValid() || wanted {
		return nil
	}
	return fmt.Errorf("it has the address %s: %w", other, ErrForeign)
}

func kindOf(kind string) Kind {
	for k := Dummy; k <= Loopback; k++ {
		if k.String() == kind {
			return k
		}
	}
	return Auto
}
