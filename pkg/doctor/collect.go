// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/nftables"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/sockets"
)

// Directories of the kernel for processes, for this process, and for conntrack.
const (
	procDir   = "/proc"
	selfDir   = "/proc/self"
	filterDir = "/proc/sys/net/netfilter"
)

// sysAdmin is the capability to create namespaces.
const sysAdmin capabilities.Capability = "SYS_ADMIN"

// collect reads all facts. It adds the addresses of the Service to c if only the kernel has them.
func collect(ctx context.Context, c *Config) Facts {
	var f Facts
	f.Capabilities.Missing = capabilities.Missing(capabilities.NetAdmin)
	f.Addresses, f.AddressErr = addresses(c.Rules.Addresses)
	f.Sockets, f.SocketsErr = sockets.ListBound(c.Rules.Port)
	sockets.AddProcesses(f.Sockets, procDir)
	f.agent(c)
	f.Conntrack = conntrackFill(filterDir)
	f.DataPlane, f.DataPlaneErr = dataplane.Find(ctx, dataplane.Config{Usable: usable})
	f.Backends, f.BackendErrs = readBackends(ctx, c.Backend)
	addServices(&c.Rules, f.Backends)
	if c.Admin.IsValid() {
		f.Status, f.StatusErr = status(ctx, c)
	}
	f.Kubelet = readKubelet(procDir)
	f.Pods, f.PodsErr = podResolvers(procDir, selfDir)
	f.ask(ctx, c)
	return f
}

// usable returns why a backend cannot be used, which is a missing program.
func usable(backend string) error {
	variant, ok := map[string]iptables.Variant{
		dataplane.BackendIPTablesNFT: iptables.Nft, dataplane.BackendIPTablesLegacy: iptables.Legacy,
	}[backend]
	if !ok {
		return nil
	}
	b, err := iptables.New(iptables.Config{Variant: variant})
	if err != nil {
		return err
	}
	return b.Close()
}

// addServices adds the addresses of the Service from the leases, if the configuration
// leaves them to the agent.
func addServices(r *rules.Rules, all []BackendState) {
	if r.Mode != rules.Transparent || len(r.Services) > 0 {
		return
	}
	for _, h := range all {
		for key := range h.State.Leases {
			if !slices.Contains(r.Services, key) && r.Target(key).IsValid() {
				r.Services = append(r.Services, key)
			}
		}
	}
	slices.SortFunc(r.Services, netip.Addr.Compare)
}

// addresses returns the links that have the wanted addresses.
func addresses(wanted []netip.Addr) ([]Address, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var list []Address
	for _, has := range all {
		a, ok := netip.AddrFromSlice(has.IP)
		if a = a.Unmap(); !ok || !slices.Contains(wanted, a) {
			continue
		}
		link, err := netlink.LinkByIndex(has.LinkIndex)
		if err != nil {
			continue // removed meanwhile
		}
		list = append(list, Address{Addr: a, Link: link.Attrs().Name, Kind: link.Type(), Alias: link.Attrs().Alias})
	}
	return list, nil
}

// agent reads the process that listens and its capabilities.
func (f *Facts) agent(c *Config) {
	for _, a := range c.listening() {
		for _, s := range f.Sockets {
			if s.PID == 0 || !s.Accepts(a) {
				continue
			}
			agent := process{dir: fmt.Sprintf("%s/%d", procDir, s.PID), pid: s.PID}
			if lacks, err := agent.isMissing(unix.CAP_NET_ADMIN); err == nil {
				f.Capabilities.AgentPID = s.PID
				if lacks {
					f.Capabilities.AgentMissing = []string{string(capabilities.NetAdmin)}
				}
				return
			}
		}
	}
}

// A stateReader is the part of a backend that the doctor uses.
type stateReader interface {
	fmt.Stringer
	State(ctx context.Context) (rules.State, error)
	Close() error
}

// readBackends reads the state of each backend. It returns an error only for the one that
// the agent uses; with "auto" that is nftables, which sees most.
func readBackends(ctx context.Context, backend string) (all []BackendState, errs []error) {
	for _, open := range []struct {
		name string
		new  func() (stateReader, error)
	}{
		{dataplane.BackendNFTables, func() (stateReader, error) { return nftables.New(nftables.Config{}) }},
		{dataplane.BackendIPTablesNFT, func() (stateReader, error) { return iptables.New(iptables.Config{Variant: iptables.Nft}) }},
		{dataplane.BackendIPTablesLegacy, func() (stateReader, error) { return iptables.New(iptables.Config{Variant: iptables.Legacy}) }},
	} {
		if open.name == dataplane.BackendIPTablesLegacy && !legacyInUse(selfDir) {
			continue
		}
		h, err := holds(ctx, open.new)
		byIPTables := strings.HasPrefix(open.name, "iptables")
		wanted := byIPTables && backend == "iptables" || !byIPTables && backend != "iptables"
		switch {
		case err != nil && wanted:
			errs = append(errs, err)
		case err == nil && h.State.Present:
			all = append(all, h)
		}
	}
	return all, errs
}

func holds(ctx context.Context, open func() (stateReader, error)) (BackendState, error) {
	b, err := open()
	if err != nil {
		return BackendState{}, err
	}
	defer func() { _ = b.Close() }()
	state, err := b.State(ctx)
	return BackendState{Backend: b.String(), State: state}, err
}

// legacyInUse reports whether iptables-legacy has any table. Reading a table creates it, so
// the doctor must not read one that does not exist.
func legacyInUse(self string) bool {
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		names, err := os.ReadFile(filepath.Join(self, "net", file))
		if err == nil && len(names) > 0 {
			return true
		}
	}
	return false
}

// status reads the agent's status page.
func status(ctx context.Context, c *Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	at := c.Admin
	switch {
	case at.Addr().IsUnspecified() && at.Addr().Is4():
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	case at.Addr().IsUnspecified():
		at = netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/status?format=json", http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy
	response, err := client.Do(request)
	if err != nil {
		return "", errors.New(shortError(err, c.Timeout))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	var page struct {
		State string `json:"state"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 16<<20)).Decode(&page); err != nil {
		return "", fmt.Errorf("reading the page: %w", err)
	}
	return page.State, nil
}
