// SPDX-License-Identifier: Apache-2.0

package nodelab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// Options say what a lab consists of.
type Options struct {
	Pods   int  // pods on the node; 0: 2; at most 200
	NoIPv6 bool // IPv4 only
}

// A Lab is a node, pods on it and a host that the node reaches, each a network namespace.
type Lab struct {
	Node     *Host
	Upstream *Host
	Pods     []*Host

	dir string // for the lock of iptables-legacy, which has to be a file that programs without rights can open
}

// ServiceIPv4 is the address of the DNS service, which the node routes to the upstream host.
func ServiceIPv4() netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, 10}) }

// ServiceIPv6 is the address of the DNS service, which the node routes to the upstream host.
func ServiceIPv6() netip.Addr { return netip.MustParseAddr("fd00:96::a") }

// New makes a lab. Only root may. The caller closes it.
func New(o Options) (*Lab, error) {
	if o.Pods == 0 {
		o.Pods = 2
	}
	if o.Pods < 0 || o.Pods > 200 {
		return nil, fmt.Errorf("a lab of %d pods", o.Pods)
	}
	l := &Lab{}
	if err := l.build(o); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) build(o Options) (err error) {
	if l.dir, err = os.MkdirTemp("", "nodelab-"); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if l.Node, err = l.newHost("node"); err != nil {
		return err
	}
	if err := l.Node.forward(); err != nil {
		return err
	}
	if l.Upstream, err = l.newHost("upstream"); err != nil {
		return err
	}
	if err := l.Node.connect(l.Upstream, newCable("up0", 201, 0, o)); err != nil {
		return err
	}
	for i := range o.Pods {
		pod, err := l.newHost(fmt.Sprintf("pod%d", i))
		if err != nil {
			return err
		}
		l.Pods = append(l.Pods, pod)
		if err := l.Node.connect(pod, newCable(fmt.Sprintf("pod%d", i), 200, i, o)); err != nil {
			return err
		}
	}
	if err := l.Node.defaultRoute(l.Upstream.IPv4, l.Upstream.IPv6); err != nil {
		return err
	}
	if err := l.Upstream.AddAddress(ServiceIPv4()); err != nil || o.NoIPv6 {
		return err
	}
	return l.Upstream.AddAddress(ServiceIPv6())
}

// newHost makes a host with nothing but a loopback device.
func (l *Lab) newHost(name string) (*Host, error) {
	h := &Host{Name: name, lock: filepath.Join(l.dir, name+"-xtables.lock")}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("making host %s, which only root may: %w", name, err)
	}
	return h, nil
}

// Hosts are all hosts of l: the node, the upstream host and the pods.
func (l *Lab) Hosts() []*Host {
	var all []*Host
	for _, h := range append([]*Host{l.Node, l.Upstream}, l.Pods...) {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}

// Close ends every process that still runs in the lab and takes the lab away. It may be called more than once.
func (l *Lab) Close() error {
	hosts := l.Hosts()
	errs := make([]error, 0, 2+len(hosts))
	errs = append(errs, killAll(hosts))
	for _, h := range hosts {
		errs = append(errs, h.close())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// ForTest makes a lab that ends with the test, and skips the test without root.
func ForTest(tb testing.TB, o Options) *Lab {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("making network namespaces needs root")
	}
	l, err := New(o)
	if err != nil {
		tb.Fatalf("making a lab: %v", err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("taking the lab away: %v", err)
		}
	})
	return l
}
