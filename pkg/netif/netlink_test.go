// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

func TestRealLostEventsWake(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	e, err := g.node.(*realNode).subscribe(linkName, addrs)
	assert.NoError(t, err)
	defer func() { _ = e.file.Close() }()
	raw, err := e.file.SyscallConn()
	assert.NoError(t, err)
	assert.NoError(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }))
	assert.NoError(t, err)
	other := netip.MustParsePrefix("10.1.2.3/32")
	for range 50 { // unrelated events fill the buffer, so that the relevant last one is lost
		assert.NoError(t, g.addPrefix(loIndex, other, markOf("x"), false))
		assert.NoError(t, g.removeAddress(loIndex, other))
	}
	assert.NoError(t, g.createOther(linkName, "bridge"))
	received := make(chan error, 1)
	go func() { received <- e.next() }()
	select {
	case err := <-received:
		assert.NoError(t, err)
	case <-time.After(waitLimit):
		t.Fatal("no event after lost events")
	}
}

func TestRealUnrelatedEventsIgnored(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	assert.NoError(t, g.createOther(linkName, "bridge"))
	next, stop, err := g.events(linkName, addrs)
	assert.NoError(t, err)
	received := make(chan error, 16)
	go func() {
		for {
			err := next()
			received <- err
			if err != nil {
				return
			}
		}
	}()
	quiet := func(what string) {
		t.Helper()
		select {
		case err := <-received:
			t.Errorf("%s: woke the subscription (%v)", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	loud := func(what string) {
		t.Helper()
		select {
		case err := <-received:
			assert.NoError(t, err)
		case <-time.After(waitLimit):
			t.Errorf("%s: did not wake the subscription", what)
		}
		for len(received) > 0 {
			assert.NoError(t, <-received)
		}
	}
	assert.NoError(t, g.createOther("cali1", "bridge"))
	assert.NoError(t, g.setUp(g.device("cali1").index))
	assert.NoError(t, g.addPrefix(g.device("cali1").index, netip.MustParsePrefix("10.1.2.3/32"), 0, false))
	quiet("another link")
	assert.NoError(t, g.addPrefix(g.device("cali1").index, host(ip6), 0, false))
	loud("the address on another link")
	assert.NoError(t, g.deleteLink(g.device(linkName).index))
	loud("the link removed")
	stop()
	select {
	case err := <-received:
		if err == nil {
			err = <-received
		}
		if err == nil {
			t.Error("next after close: no error")
		}
	case <-time.After(waitLimit):
		t.Error("next does not end with close")
	}
}

// Another program removes the address as soon as it is added, on the real kernel.
func TestRealRepairRateIsBounded(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	l := g.setup(g.config("one"))
	dev := g.device(linkName)
	next, stop, err := g.events("none", addrs[:1])
	assert.NoError(t, err)
	taken := make(chan int)
	go func() {
		g.enter()
		n := 0
		for next() == nil {
			if g.removeAddress(dev.index, host(ip4)) == nil {
				n++
			}
		}
		taken <- n
	}()
	g.run(l)
	assert.NoError(t, g.removeAddress(dev.index, host(ip4)))
	proctest.Eventually(t, 2*waitLimit, "contested", func() bool { return l.Stats().Contested })
	before, begin := l.Stats().Repairs, time.Now()
	time.Sleep(2 * time.Second)
	after, took := l.Stats().Repairs, time.Since(begin)
	stop()
	t.Logf("repairs: %d, then %d in %s; %d times removed", before, after-before, took, <-taken)
	if after-before > 4+uint64(took/repairInterval) {
		t.Errorf("%d repairs in %s", after-before, took)
	}
	proctest.Eventually(t, 2*waitLimit, "held", func() bool { return g.complete(linkName) })
}

func TestRealMissingCapability(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	assert.NoError(t, g.createOther("eth0", "bridge"))
	before := g.snapshot()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	assert.NoError(t, unix.Capget(&header, &caps[0]))
	caps[unix.CAP_NET_ADMIN/32].Effective &^= 1 << (unix.CAP_NET_ADMIN % 32)
	assert.NoError(t, unix.Capset(&header, &caps[0])) // of this thread, which ends with the test
	for _, kind := range []Kind{Auto, Bridge, Loopback} {
		config := g.config("one")
		config.Kind = kind
		err := g.link(config).Setup(t.Context())
		if !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("setup of %s: %v", kind, err)
		}
	}
	g.unchanged("setups", before)
}

func TestRealAutoReportsKind(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	config := g.config("one")
	config.Kind = Auto
	s := g.setup(config).Stats()
	t.Logf("kind %s; %s", s.Kind, s.Reason)
	if dev := g.device(linkName); dev.kind != s.Kind || (s.Kind == "dummy") != (s.Reason == "") {
		t.Errorf("stats %+v, link %+v", s, dev)
	}
}

// The agent's link gets no link-local address and only local routes.
func TestRealLinkAddsNothingElse(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	g.setup(g.config("one"))
	dump := g.snapshot()
	if strings.Contains(dump, "fe80::") || strings.Contains(dump, "Dst: fd00:53::a/128 Src: <nil> Gw: <nil> Flags: [] Table: 254") {
		t.Errorf("after setup:\n%s", dump)
	}
}

func TestRealAlternativeNameIsForeign(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	assert.NoError(t, g.createOther("eth0", "bridge"))
	links := g.node.(*realNode).links
	eth0, err := links.LinkByName("eth0")
	assert.NoError(t, err)
	assert.NoError(t, links.LinkAddAltName(eth0, linkName))
	before := g.snapshot()
	err = g.link(g.config("one")).Setup(t.Context())
	if want := "it is an alternative name of link eth0"; !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), want) {
		t.Errorf("setup: %v, want %q", err, want)
	}
	g.unchanged("setup", before)
}

func TestCleanupOfThisNamespace(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	before := g.snapshot()
	g.setup(g.config("dead"))
	removed, err := Cleanup(t.Context(), linkName, addrs)
	if want := "[link nodelocaldns]"; err != nil || fmt.Sprint(removed) != want {
		t.Errorf("removed %s, %v; want %s", removed, err, want)
	}
	g.unchanged("cleanup", before)
}

func FuzzParseAddress(f *testing.F) {
	f.Add([]byte{}, uint32(7), uint32(0), uint8(32), []byte{10, 0, 0, 1})
	f.Add([]byte{1, 2, 3}, uint32(1), markOf("a"), uint8(128), ip6.AsSlice())
	f.Fuzz(func(t *testing.T, junk []byte, index, mark uint32, bits uint8, ip []byte) {
		_, _ = parseAddress(junk) // must not panic

		msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
		msg.Index, msg.Prefixlen = index, bits
		var b bytes.Buffer
		b.Write(msg.Serialize())
		b.Write(nl.NewRtAttr(unix.IFA_ADDRESS, ip).Serialize())
		b.Write(attribute(unix.IFA_RT_PRIORITY, mark).Serialize())
		got, err := parseAddress(b.Bytes())
		want := address{index: int(index), mark: mark}
		if a, ok := netip.AddrFromSlice(ip); ok && int(bits) <= a.BitLen() {
			want.prefix = netip.PrefixFrom(a, int(bits))
		}
		if d := diff(fmt.Sprint(want), fmt.Sprint(got)); err != nil || d != "" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	})
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	for from, want := range map[unix.Errno]error{
		unix.EPERM: ErrNotPermitted, unix.EACCES: ErrDisabled, unix.EOPNOTSUPP: ErrUnsupported, unix.EAFNOSUPPORT: ErrUnsupported,
		unix.EEXIST: errExists, unix.ENODEV: errLinkGone, unix.ENXIO: errLinkGone, unix.ENOBUFS: unix.ENOBUFS,
	} {
		if got := translate(fmt.Errorf("requesting: %w", from)); !errors.Is(got, want) {
			t.Errorf("%v becomes %v, want %v", from, got, want)
		}
	}
}
