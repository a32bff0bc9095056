// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// A fakeKernel models the links and addresses of a node. All opened kernels share it.
type fakeKernel struct {
	mu           sync.Mutex // guards the fields below
	links        map[int]*device
	addrs        []address
	next         int
	lacks        map[Kind]bool
	noCapability bool
	noIPv6       bool
	lossy        bool  // events are lost
	broken       error // the error of open
	streams      []*fakeEvents
	reads        int              // calls of addresses
	puts         int              // addresses added
	onPut        func(netip.Addr) // called when an address is added
}

func newFake(lacks ...Kind) *fakeKernel {
	f := &fakeKernel{links: map[int]*device{}, next: 2, lacks: map[Kind]bool{}}
	f.links[loIndex] = &device{index: loIndex, name: "lo", kind: "lo", up: true}
	f.addrs = []address{
		{index: loIndex, prefix: netip.MustParsePrefix("127.0.0.1/8")},
		{index: loIndex, prefix: netip.MustParsePrefix("::1/128")},
	}
	for _, kind := range lacks {
		f.lacks[kind] = true
	}
	return f
}

func (f *fakeKernel) open() (kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, f.broken
}

func (f *fakeKernel) close() {}

func (f *fakeKernel) link(name string) (device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.links {
		if d.name == name {
			return *d, nil
		}
	}
	return device{}, errNoLink
}

func (f *fakeKernel) linkName(index int) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.links[index]; d != nil {
		return d.name, nil
	}
	return "", errLinkGone
}

func (f *fakeKernel) portCount(index int) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.links {
		if d.master == index {
			n++
		}
	}
	return n, nil
}

func (f *fakeKernel) createLink(name string, kind Kind) error {
	f.mu.Lock()
	noCapability, lacks := f.noCapability, f.lacks[kind]
	f.mu.Unlock()
	switch {
	case noCapability:
		return ErrNotPermitted
	case lacks:
		return ErrUnsupported
	}
	return f.createOther(name, kind)
}

func (f *fakeKernel) createOther(name string, kind Kind) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.links {
		if d.name == name {
			return errExists
		}
	}
	f.links[f.next] = &device{index: f.next, name: name, kind: kind}
	f.next++
	f.notify()
	return nil
}

// change changes the link with that index.
func (f *fakeKernel) change(index int, do func(*device)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.links[index]
	switch {
	case d == nil:
		return errLinkGone
	case f.noCapability:
		return ErrNotPermitted
	}
	do(d)
	f.notify()
	return nil
}

func (f *fakeKernel) deleteLink(index int) error {
	return f.change(index, func(*device) {
		delete(f.links, index)
		f.addrs = slices.DeleteFunc(f.addrs, func(a address) bool { return a.index == index })
	})
}

func (f *fakeKernel) setAlias(index int, alias string) error {
	return f.change(index, func(d *device) { d.alias = alias })
}

func (f *fakeKernel) setUp(index int) error {
	return f.change(index, func(d *device) { d.up = true })
}

// setDown also removes the IPv6 addresses, as the kernel does.
func (f *fakeKernel) setDown(index int) error {
	return f.change(index, func(d *device) {
		d.up = false
		f.addrs = slices.DeleteFunc(f.addrs, func(a address) bool { return a.index == index && a.prefix.Addr().Is6() })
	})
}

func (f *fakeKernel) enslave(port, master int) error {
	return f.change(port, func(d *device) { d.master = master })
}

func (f *fakeKernel) setIPv6(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noIPv6 = !on
	return nil
}

func (f *fakeKernel) addresses(index int) ([]address, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if index != 0 && f.links[index] == nil {
		return nil, errLinkGone
	}
	return slices.DeleteFunc(slices.Clone(f.addrs), func(a address) bool { return index != 0 && a.index != index }), nil
}

func (f *fakeKernel) putAddress(index int, a netip.Addr, mark uint32, replace bool) error {
	err := f.addPrefix(index, netip.PrefixFrom(a, a.BitLen()), mark, replace)
	f.mu.Lock()
	onPut := f.onPut
	f.mu.Unlock()
	if onPut != nil && err == nil {
		onPut(a)
	}
	return err
}

func (f *fakeKernel) addPrefix(index int, p netip.Prefix, mark uint32, replace bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.puts++
	switch {
	case f.noCapability:
		return ErrNotPermitted
	case f.links[index] == nil:
		return errLinkGone
	case f.noIPv6 && p.Addr().Is6():
		return ErrDisabled
	}
	i := slices.IndexFunc(f.addrs, func(h address) bool {
		return h.index == index && (h.prefix == p || p.Addr().Is6() && h.prefix.Addr() == p.Addr())
	})
	switch {
	case i >= 0 && !replace:
		return errExists
	case i >= 0:
		f.addrs[i].mark = mark
	case replace:
		return errors.New("no such address")
	default:
		f.addrs = append(f.addrs, address{index: index, prefix: p, mark: mark})
	}
	f.notify()
	return nil
}

func (f *fakeKernel) removeAddress(index int, p netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.noCapability {
		return ErrNotPermitted
	}
	before := len(f.addrs)
	f.addrs = slices.DeleteFunc(f.addrs, func(a address) bool { return a.index == index && a.prefix == p })
	if len(f.addrs) != before {
		f.notify()
	}
	return nil
}

// set changes a property of the fake itself.
func (f *fakeKernel) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// count reads one of the fake's counters.
func (f *fakeKernel) count(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *n
}

func (f *fakeKernel) dump() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, i := range slices.Sorted(maps.Keys(f.links)) {
		d := *f.links[i]
		d.index = 0 // differs on each run
		fmt.Fprintf(&b, "%+v\n", d)
		list := slices.DeleteFunc(slices.Clone(f.addrs), func(a address) bool { return a.index != i })
		slices.SortFunc(list, func(a, b address) int { return cmp.Compare(a.prefix.String(), b.prefix.String()) })
		for _, a := range list {
			fmt.Fprintf(&b, "  %s %#x\n", a.prefix, a.mark)
		}
	}
	return b.String(), nil
}

func (f *fakeKernel) ipOutput() string { return "" }

type fakeEvents struct {
	ready chan struct{}
	done  chan struct{}
	once  sync.Once
}

func (f *fakeKernel) events(string, []netip.Addr) (next func() error, stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &fakeEvents{ready: make(chan struct{}, 1), done: make(chan struct{})}
	f.streams = append(f.streams, e)
	return e.next, e.close, nil
}

// notify wakes all subscriptions. The caller holds mu.
func (f *fakeKernel) notify() {
	if f.lossy {
		return
	}
	for _, e := range f.streams {
		select {
		case e.ready <- struct{}{}:
		default:
		}
	}
}

// closeEvents ends all subscriptions, as a failing socket does.
func (f *fakeKernel) closeEvents() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.streams {
		e.close()
	}
	f.streams = nil
}

func (e *fakeEvents) next() error {
	select {
	case <-e.done:
		return errors.New("closed")
	case <-e.ready:
		return nil
	}
}

func (e *fakeEvents) close() { e.once.Do(func() { close(e.done) }) }
