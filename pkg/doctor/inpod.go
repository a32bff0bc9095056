// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// An order is what a pod is to do.
type order struct {
	Net     *podNet       `json:"net,omitempty"` // to set up
	Probes  []Probe       `json:"probes,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // of one probe
}

// A result is what became of an order.
type result struct {
	Outcomes []Outcome `json:"outcomes"`
	Error    string    `json:"error"`
}

// InPod is the pod's side of a [Doctor]: it does what is asked of it by in, and
// answers by out, until in ends: at once, whatever it is at, as nobody waits for it
// then. It is to run in a network namespace of its own.
func InPod(ctx context.Context, in io.Reader, out io.Writer, now func() time.Time) error {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	orders, ended := make(chan order), error(nil)
	go func() { // ends when in does: nothing else wakes a reader
		defer close(orders)
		defer cancel()
		ended = readOrders(working, in, orders)
	}()
	results := json.NewEncoder(out)
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				return ended
			}
			if err := results.Encode(o.carryOut(working, now)); err != nil {
				return fmt.Errorf("answering: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// readOrders passes on what in says, until it ends or ctx does.
func readOrders(ctx context.Context, in io.Reader, orders chan<- order) error {
	for d := json.NewDecoder(in); ; {
		var o order
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading what to do: %w", err)
		}
		select {
		case orders <- o:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *order) carryOut(ctx context.Context, now func() time.Time) result {
	var r result
	if o.Net != nil {
		if err := o.Net.setup(ctx); err != nil {
			r.Error = err.Error()
		}
	}
	r.Outcomes = asker{timeout: o.Timeout, now: now}.askAll(ctx, o.Probes)
	return r
}

// setup gives the pod's links addresses and routes.
func (n *podNet) setup(ctx context.Context) error {
	for _, name := range []string{"lo", podLink} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("setting link %s up: %w", name, err)
		}
		if name == podLink {
			err = n.configure(link)
		}
		if err != nil {
			return err
		}
	}
	own := make([]netip.Addr, 0, len(n.Own))
	for _, a := range n.Own {
		own = append(own, a.Addr())
	}
	return awaitUp(ctx, podLink, own)
}

func (n *podNet) configure(link netlink.Link) error {
	for i, own := range n.Own {
		if err := addAddress(link, own); err != nil {
			return err
		}
		if err := addNeighbour(link, n.Gateway[i], n.Node); err != nil {
			return err
		}
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if own.Addr().Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: n.Gateway[i].AsSlice(),
			Dst: &net.IPNet{IP: all.Addr().AsSlice(), Mask: net.CIDRMask(0, all.Addr().BitLen())},
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("adding a route by %s: %w", n.Gateway[i], err)
		}
	}
	return nil
}
