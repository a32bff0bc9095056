// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// What kube-proxy and the kubelet leave.
const (
	tableKubeProxy = "kube-proxy"
	chainServices  = "KUBE-SERVICES"
	chainHint      = "KUBE-IPTABLES-HINT"
	chainCanary    = "KUBE-KUBELET-CANARY"
)

// proxyModeAt is where kube-proxy tells its mode, unless its --metrics-bind-address
// moved that.
const proxyModeAt = "127.0.0.1:10249"

// proc is the kernel's view of the calling thread: /proc/net is of the process's first
// thread, which may be in another network namespace.
const proc = "/proc/thread-self"

// A node is where traces are looked for.
type node struct {
	timeout time.Duration // for kube-proxy; 0: 500 ms
}

// look collects all traces. It is to run on one thread, so it starts no goroutine.
func (n node) look(ctx context.Context) Traces {
	t := Traces{ProxyMode: n.proxyMode(ctx), Links: links(), IPVS: ipvs(proc + "/net/ip_vs"), Pins: pins("/sys/fs/bpf")}
	t.NFT, t.NoNFT = nftChains()
	t.Legacy, t.LegacyTables, t.NoLegacy = legacyChains()
	t.Sockets, t.NoSockets = socketPrograms(proc)
	return t
}

// proxyMode asks kube-proxy by hand: an HTTP client would connect from a goroutine of
// its own, and that from a thread in another namespace.
func (n node) proxyMode(ctx context.Context) string {
	timeout := n.timeout
	if timeout == 0 {
		timeout = 500 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", proxyModeAt)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	if _, err := io.WriteString(conn, "GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n"); err != nil {
		return ""
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err != nil {
		return ""
	}
	return modeIn(string(answer))
}

// modeIn reads the body of an HTTP answer; "" unless the answer is a good one.
func modeIn(answer string) string {
	head, body, ok := strings.Cut(answer, "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	if !ok || !strings.HasPrefix(status, "HTTP/1") || !strings.Contains(status, " 200 ") {
		return ""
	}
	return strings.TrimSpace(body)
}

func links() []string {
	all, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	names := make([]string, 0, len(all))
	for _, l := range all {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return names
}

// ipvs counts the virtual services in the kernel's list; -1 if there is no list.
func ipvs(list string) int {
	f, err := os.Open(list)
	if err != nil {
		return -1
	}
	defer func() { _ = f.Close() }()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		switch kind, _, _ := strings.Cut(s.Text(), " "); kind {
		case "TCP", "UDP", "SCTP", "FWM": // the others are headings and real servers
			n++
		}
	}
	return n
}

// pins finds one map of each data plane that pins its map of Services.
func pins(root string) []string {
	var list []string
	for _, pattern := range []string{
		"tc/globals/cilium_lb4_services*", "tc/globals/cilium_lb6_services*",
		"tc/globals/cali_v4_nat_fe*", "tc/globals/cali_v6_nat_fe*", "calico/maps/cali_v4_nat_fe*",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil && len(found) > 0 {
			list = append(list, found[0])
		}
	}
	return list
}

// nftChains lists the chains that tell something. It asks for each by its name: a
// kube-proxy with thousands of Services has tens of thousands of others.
func nftChains() ([]Chain, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	var list []Chain
	for _, t := range tables {
		if t.Family != nftables.TableFamilyIPv4 && t.Family != nftables.TableFamilyIPv6 {
			continue
		}
		v6 := t.Family == nftables.TableFamilyIPv6
		if t.Name == tableKubeProxy {
			list = append(list, Chain{V6: v6, Table: t.Name})
		}
		for _, name := range telling(t.Name) {
			if _, err := conn.ListChain(t, name); err == nil {
				list = append(list, Chain{V6: v6, Table: t.Name, Name: name})
			}
		}
	}
	return list, nil
}

// telling names the chains that tell something in a table of iptables.
func telling(table string) []string {
	switch table {
	case "nat":
		return []string{chainServices}
	case "mangle":
		return []string{chainHint, chainCanary}
	}
	return nil
}
