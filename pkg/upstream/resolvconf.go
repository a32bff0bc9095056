// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Bounds of a resolv.conf. The C library reads three nameservers.
const (
	maxConfSize    = 64 << 10 // bytes
	maxNameservers = 16
)

// A source provides a part of the list: one address, or the addresses of a watched resolv.conf(5).
type source struct {
	*common
	target Target // the address, or the path of the file

	// Set if the source is a file:
	servers    []netip.AddrPort // the last valid list
	text       []byte           // the text last read, of the file or of SystemdResolvConf
	unreadable bool             // the last read failed
}

// isFile reports whether the source is a file.
func (f *source) isFile() bool { return f.target.ResolvConf != "" }

// targets returns the current upstreams.
func (f *source) targets() []Target {
	if !f.isFile() {
		return []Target{f.target}
	}
	list := make([]Target, 0, len(f.servers))
	for _, addr := range f.servers {
		list = append(list, Target{Network: "udp", Addr: addr})
	}
	return list
}

// ReadResolvConf returns the servers that a pool asks for the resolv.conf at a path, and those that it does not ask, each with the
// reason. cfg needs no Targets.
func ReadResolvConf(path string, cfg Config) (servers []netip.AddrPort, excluded []Excluded, err error) {
	f := &source{common: newCommon(cfg), target: Target{ResolvConf: path}}
	text, err := f.read()
	if err == nil {
		servers, excluded = f.sortServers(text)
	}
	return servers, excluded, err
}

// load reads the file for the first time. A file without servers is no error.
func (f *source) load() (err error) {
	if f.text, err = f.read(); err == nil {
		f.servers = f.usableServers(context.Background(), f.text)
	}
	return err
}

// reload reads the file again and reports whether its servers have changed. A file that cannot be read or names no
// usable server changes nothing.
func (f *source) reload(ctx context.Context) bool {
	text, err := f.read()
	if err != nil && !f.unreadable {
		f.Log.WarnContext(ctx, "resolv.conf unreadable, keeping its last servers", "err", err)
	}
	f.unreadable = err != nil
	if err != nil || bytes.Equal(text, f.text) {
		return false
	}
	servers := f.usableServers(ctx, text)
	f.text = text
	if len(servers) == 0 {
		f.Log.WarnContext(ctx, "resolv.conf names no usable server, keeping its last servers", "path", f.target.ResolvConf)
		return false
	}
	changed := !slices.Equal(servers, f.servers)
	f.servers = servers
	return changed
}

// read returns the text of the file, or systemd's list of real servers if the file names only the stub. The stub would
// cost a hop and has its own cache. The stub is used if systemd's list cannot be read or names no server.
func (f *source) read() ([]byte, error) {
	text, err := filewatch.ReadFile(f.target.ResolvConf, maxConfSize)
	servers := nameservers(text)
	if err != nil || len(servers) == 0 || slices.ContainsFunc(servers, func(s string) bool {
		return s != "127.0.0.53" && s != "127.0.0.54"
	}) {
		return text, err
	}
	if behind, err := filewatch.ReadFile(f.SystemdResolvConf, maxConfSize); err == nil && len(nameservers(behind)) > 0 {
		return behind, nil
	}
	return text, nil
}

// usableServers returns the servers in text that can be asked, and logs the others.
func (f *source) usableServers(ctx context.Context, text []byte) []netip.AddrPort {
	list, excluded := f.sortServers(text)
	for _, e := range excluded {
		f.Log.WarnContext(ctx, "nameserver excluded", "reason", e.Reason, "path", f.target.ResolvConf, "upstream", e.Server)
	}
	return list
}

// An Excluded is a nameserver of a resolv.conf that is not asked.
type Excluded struct {
	Server string // as the file has it, or with its port
	Reason string
}

// sortServers returns the servers in text that can be asked, and the others.
func (f *source) sortServers(text []byte) (list []netip.AddrPort, excluded []Excluded) {
	for _, s := range nameservers(text) {
		ip, err := netip.ParseAddr(s)
		addr := netip.AddrPortFrom(ip.Unmap(), 53)
		switch {
		case err != nil:
			excluded = append(excluded, Excluded{s, "not an address"})
		case slices.Contains(list, addr):
		case f.Self(addr):
			excluded = append(excluded, Excluded{addr.String(), "own address"})
		case len(list) == maxNameservers:
			excluded = append(excluded, Excluded{addr.String(), "too many"})
		default:
			list = append(list, addr)
		}
	}
	return list, excluded
}

// nameservers returns the arguments of "nameserver", valid or not.
func nameservers(text []byte) []string {
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	if err != nil {
		return nil // cannot happen for bytes in memory
	}
	return conf.Servers
}
