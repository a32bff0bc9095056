// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
)

// The tables and chains of kube-proxy and the kubelet.
const (
	tableKubeProxy = "kube-proxy"
	chainServices  = "KUBE-SERVICES"
	chainHint      = "KUBE-IPTABLES-HINT"
	chainCanary    = "KUBE-KUBELET-CANARY"
)

// linkCilium is a link that Cilium creates on each node, and removes when it is uninstalled.
const linkCilium = "cilium_host"

// proxyModeAddr is the address at which kube-proxy reports its mode, unless its
// --metrics-bind-address is set.
const proxyModeAddr = "127.0.0.1:10249"

// proc is the directory of the calling thread. /proc/net belongs to the main thread, which
// may be in another network namespace.
const proc = "/proc/thread-self"

// readTraces reads all traces from the kernel. It has to stay on one thread, so it starts no
// goroutine.
func readTraces(ctx context.Context) Traces {
	t := Traces{ProxyMode: proxyMode(ctx), Links: links(), IPVS: ipvs(proc + "/net/ip_vs"), Pins: pins("/sys/fs/bpf")}
	t.readChains()
	t.Sockets, t.SocketsErr = socketPrograms(proc)
	return t
}

func (t *Traces) readChains() {
	t.NFT, t.NFTErr = nftChains()
	t.Legacy, t.LegacyTables, t.LegacyErr = legacyChains()
}

// proxyMode requests kube-proxy's mode. It uses no http.Client, which would connect from
// another goroutine, and so from a thread that may be in another namespace.
func proxyMode(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", proxyModeAddr)
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
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	mode, err := io.ReadAll(io.LimitReader(answer.Body, 64))
	if err != nil || answer.StatusCode != http.StatusOK {
		return ""
	}
	return strings.TrimSpace(string(mode))
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

// OnCilium reports whether Cilium is the data plane of the calling thread's network namespace. It is cheap: the agent asks again and
// again, because Cilium may be installed later.
func OnCilium() (bool, error) {
	_, err := netlink.LinkByName(linkCilium)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for link %s: %w", linkCilium, err)
	}
	return true, nil
}

// ipvs counts the virtual services in the kernel's list; -1 without a list.
func ipvs(list string) int {
	f, err := os.Open(list)
	if err != nil {
		return -1
	}
	defer func() { _ = f.Close() }()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		switch kind, _, _ := strings.Cut(s.Text(), " "); kind {
		case "TCP", "UDP", "SCTP", "FWM": // other lines are headings and real servers
			n++
		}
	}
	return n
}

// pins returns one pinned map of each data plane that pins its map of Services.
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

// nftChains lists the chains for Traces.NFT. It requests each by name: a kube-proxy with thousands
// of Services has tens of thousands of other chains.
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
		if t.Family == nftables.TableFamilyINet && isPolicyTable(t.Name) {
			list = append(list, Chain{Table: t.Name})
		}
		if t.Family != nftables.TableFamilyIPv4 && t.Family != nftables.TableFamilyIPv6 {
			continue
		}
		v6 := t.Family == nftables.TableFamilyIPv6
		if t.Name == tableKubeProxy || isPolicyTable(t.Name) {
			list = append(list, Chain{V6: v6, Table: t.Name})
		}
		for _, name := range knownChains(t.Name) {
			if c, err := conn.ListChain(t, name); err == nil {
				list = append(list, Chain{V6: v6, Table: t.Name, Name: name, Untracks: t.Name == "raw" && nftUntracks(conn, c)})
			}
		}
	}
	return list, nil
}

// nftUntracks reports whether a chain of iptables-nft in raw exempts packets from conntrack by their source.
func nftUntracks(conn *nftables.Conn, c *nftables.Chain) bool {
	list, err := conn.GetRules(c.Table, c)
	if err != nil {
		return false
	}
	source := map[nftables.TableFamily]uint32{nftables.TableFamilyIPv4: 12, nftables.TableFamilyIPv6: 8}[c.Table.Family] // its offset in the header
	return slices.ContainsFunc(list, func(r *nftables.Rule) bool {
		from, untracked := false, false
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Payload:
				from = from || e.Base == expr.PayloadBaseNetworkHeader && e.Offset == source
			case *expr.Notrack:
				untracked = true
			case *expr.Target:
				data, ok := e.Info.(*xt.Unknown)
				untracked = untracked || ok && e.Name == targetCT && isNotrack(*data)
			}
		}
		return from && untracked
	})
}

// knownChains returns the names of the chains that detection looks for in a table of iptables: of kube-proxy, the kubelet, policy
// engines and Cilium.
func knownChains(table string) []string {
	switch table {
	case "nat":
		return []string{chainServices}
	case "mangle":
		return []string{chainHint, chainCanary}
	case "filter":
		return []string{chainKubeRouter, chainCalico}
	case "raw":
		return untrackingChains()
	}
	return nil
}
