// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is what carries the addresses.
type Kind uint8

// The kinds. Auto takes the first of the others, in their order, that the kernel has.
const (
	Auto     Kind = iota
	Dummy         // a dummy link
	Bridge        // a bridge without ports
	Loopback      // lo itself
)

// String returns the spelling of k in a configuration.
func (k Kind) String() string { return [...]string{"auto", "dummy", "bridge", "lo"}[k] }

// Config says which addresses are wanted, and where.
type Config struct {
	Name      string           // of the link, at most 15 bytes; Loopback puts nothing there
	Kind      Kind             //
	Addresses []netip.Addr     // unique, unicast, no zones
	Owner     string           // names this agent, 1..16 of a-z0-9
	Poll      time.Duration    // how often to look besides events; 0: 10 s
	Log       *slog.Logger     // nil: nowhere
	Now       func() time.Time // nil: time.Now
}

// A Link keeps the agent's addresses. Its methods may be called from any goroutine,
// and use the network namespace of the thread that calls them.
type Link struct {
	config Config
	mark   uint32
	open   func() (kernel, error)
	turn   chan struct{} // taken by whoever changes the kernel

	mu    sync.Mutex // guards what follows
	took  Kind       // what carries the addresses; Auto: nothing yet
	stats Stats
	gone  bool // removed on purpose
}

// Stats is what a Link knows and did.
type Stats struct {
	Kind      string                // what carries the addresses: "dummy", "bridge" or "lo"; empty: nothing yet
	Why       string                // why it is none of the kinds before it; empty: there was no need
	Held      []netip.Addr          // addresses that answer, in the configured order
	Missing   map[netip.Addr]string // the others, and what keeps them away
	Elsewhere map[netip.Addr]string // addresses that another link has as well, and its name
	Repairs   uint64                // times Run had to change anything
	Contested bool                  // something undoes the repairs; they are made less often
	StoodDown bool                  // the link is a newer agent's now
	LastError string                // of the last look; empty: all is well
}

// New checks config. It touches nothing of the node.
func New(config Config) (*Link, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if config.Poll == 0 {
		config.Poll = 10 * time.Second
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Now == nil {
		config.Now = time.Now //nolint:forbidigo // the one default; tests and the agent give their own
	}
	config.Addresses = slices.Clone(config.Addresses)
	return &Link{config: config, mark: markOf(config.Owner), open: openKernel, turn: make(chan struct{}, 1)}, nil
}

// Setup makes the node hold the addresses: it makes or adopts the link, and takes
// over what another agent has there. If some addresses could not be had, the error is
// a [*MissingError]; all others are held then. ErrNotPermitted, ErrForeign and
// ErrUnsupported say what was in the way.
func (l *Link) Setup(ctx context.Context) error {
	k, err := l.open()
	if err != nil {
		return err
	}
	defer k.close()
	for try := 1; ; try++ {
		changes, err := l.look(ctx, k, true)
		if errors.Is(err, errVanished) && try < 5 { // it went away between two steps
			continue
		}
		stats := l.Stats()
		if len(stats.Held) == 0 {
			return err
		}
		l.config.Log.InfoContext(ctx, "link set up",
			"link", l.at(), "kind", stats.Kind, "why", stats.Why, "held", stats.Held, "changes", changes)
		l.elsewhere(ctx, k)
		return err
	}
}

// Remove takes away what is this agent's own, and leaves the node as it was found.
// It returns ErrOwned if the link or an address is another agent's by now: all of
// that stays. Run repairs nothing from here on.
func (l *Link) Remove(ctx context.Context) error {
	if err := l.takeTurn(ctx); err != nil {
		return err
	}
	defer l.endTurn()
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	k, err := l.open()
	if err != nil {
		return err
	}
	defer k.close()
	_, err = clean(k, l.config.Name, func(owner string) bool { return owner == l.config.Owner },
		func(a address) bool { return a.mark == l.mark && slices.Contains(l.config.Addresses, a.prefix.Addr()) })
	if err == nil {
		err = l.left(k)
	}
	if err == nil {
		l.update(func(s *Stats) { s.Kind, s.Held = "", nil })
	}
	return err
}

// left says whether an address on lo is another agent's.
func (l *Link) left(k kernel) error {
	list, err := k.addresses(loIndex)
	if err != nil {
		return err
	}
	for _, a := range list {
		if marked(a.mark) && slices.Contains(l.config.Addresses, a.prefix.Addr()) {
			return fmt.Errorf("leaving %s on lo: %w", a.prefix.Addr(), ErrOwned)
		}
	}
	return nil
}

// Stats returns what the link knows. The caller may keep it.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Held = slices.Clone(s.Held)
	s.Missing, s.Elsewhere = maps.Clone(s.Missing), maps.Clone(s.Elsewhere)
	return s
}

func (l *Link) update(change func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.stats)
}

func (l *Link) takeTurn(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a look at link %s: %w", l.config.Name, ctx.Err())
	}
}

func (l *Link) endTurn() { <-l.turn }

func (c *Config) check() error {
	var errs []error
	if err := checkName(c.Name, c.Kind); err != nil {
		errs = append(errs, err)
	}
	if c.Kind > Loopback {
		errs = append(errs, fmt.Errorf("link kind %d: there is none", c.Kind))
	}
	if !isOwner(c.Owner) {
		errs = append(errs, fmt.Errorf("owner %q is not 1 to 16 letters and digits", c.Owner))
	}
	if c.Poll < 0 {
		errs = append(errs, fmt.Errorf("poll %s is negative", c.Poll))
	}
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("a link needs an address"))
	}
	for i, a := range c.Addresses {
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Zone() != "" || a.Is4In6() || a.Is6() && a.IsLinkLocalUnicast():
			errs = append(errs, fmt.Errorf("address %s: a link cannot hold it for the node", a))
		case slices.Contains(c.Addresses[:i], a):
			errs = append(errs, fmt.Errorf("address %s is there twice", a))
		}
	}
	return errors.Join(errs...)
}

// checkName refuses what the kernel does (dev_valid_name), what it takes for a
// pattern of a name (%), and names that have a meaning of their own in its sysctls.
func checkName(name string, kind Kind) error {
	odd := func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == '%' || r >= 0x7f }
	switch {
	case len(name) == 0 || len(name) > 15:
		return fmt.Errorf("link name %q is not 1 to 15 bytes", name)
	case name == "." || name == ".." || name == "all" || name == "default" || strings.ContainsFunc(name, odd):
		return fmt.Errorf("link name %q: no link can be called that", name)
	case name == "lo" && kind != Loopback:
		return fmt.Errorf("link name %q: that link is not for anyone to make", name)
	}
	return nil
}

func isOwner(s string) bool {
	odd := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	return len(s) >= 1 && len(s) <= 16 && !strings.ContainsFunc(s, odd)
}
