// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Bounds of a resolv.conf. The C library reads three nameservers.
const (
	maxConfSize    = 64 << 10 // bytes of a file
	maxNameservers = 16       // used
)

// A resolvConf is a followed resolv.conf(5).
type resolvConf struct {
	path        string
	systemdPath string // read in its place when it only names systemd-resolved's stub
	self        func(netip.AddrPort) bool
	log         *slog.Logger

	servers    []netip.AddrPort // the last good list
	text       []byte           // what servers was made from
	unreadable bool             // could not be read the last time
}

// first reads the file for the first time. That it names nobody is no error.
func (f *resolvConf) load() error {
	text, err := filewatch.ReadFile(f.path, maxConfSize)
	if err != nil {
		return err
	}
	f.text = f.effectiveText(text)
	f.servers = f.usableServers(context.Background(), f.text)
	return nil
}

// refresh reads the file again and reports whether its servers have changed. A
// file that is gone, or names nobody any more, changes nothing.
func (f *resolvConf) reload(ctx context.Context) bool {
	text, err := filewatch.ReadFile(f.path, maxConfSize)
	if err != nil {
		if !f.unreadable {
			f.log.WarnContext(ctx, "resolv.conf unreadable, its last servers stay", "error", err)
		}
		f.unreadable = true
		return false
	}
	f.unreadable = false
	text = f.effectiveText(text)
	if bytes.Equal(text, f.text) {
		return false
	}
	servers := f.usableServers(ctx, text)
	f.text = text
	if len(servers) == 0 {
		f.log.WarnContext(ctx, "resolv.conf names no usable server, its last servers stay", "path", f.path)
		return false
	}
	changed := !slices.Equal(servers, f.servers)
	f.servers = servers
	return changed
}

// standIn is the text that counts: systemd's list of real servers where text
// only names the stub (which would cost a hop, and a cache that serves its own
// way), else text. The stub is used as it is when that list cannot be had.
func (f *resolvConf) effectiveText(text []byte) []byte {
	servers := nameservers(text)
	if len(servers) == 0 || slices.ContainsFunc(servers, func(s string) bool {
		return s != "127.0.0.53" && s != "127.0.0.54"
	}) {
		return text
	}
	behind, err := filewatch.ReadFile(f.systemdPath, maxConfSize)
	if err != nil || len(nameservers(behind)) == 0 {
		return text
	}
	return behind
}

// usable is the list of servers in text without those that cannot be asked,
// each of which it warns about.
func (f *resolvConf) usableServers(ctx context.Context, text []byte) []netip.AddrPort {
	var list []netip.AddrPort
	for _, s := range nameservers(text) {
		ip, err := netip.ParseAddr(s)
		addr := netip.AddrPortFrom(ip.Unmap(), 53)
		switch {
		case err != nil:
			f.log.WarnContext(ctx, "nameserver left out: not an address", "path", f.path, "upstream", s)
		case slices.Contains(list, addr):
		case f.self(addr):
			f.log.WarnContext(ctx, "nameserver left out: it leads back here", "path", f.path, "upstream", addr)
		case len(list) == maxNameservers:
			f.log.WarnContext(ctx, "nameserver left out: there are too many", "path", f.path, "upstream", addr)
		default:
			list = append(list, addr)
		}
	}
	return list
}

// nameservers are the words after "nameserver", whatever they are.
func nameservers(text []byte) []string {
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	if err != nil {
		return nil // it has no error for bytes in memory
	}
	return conf.Servers
}

// followFiles rereads the resolv.conf files on every change until ctx ends.
func (p *Pool) watchFiles(ctx context.Context) {
	var files []*resolvConf
	var paths []string
	for _, src := range p.sources {
		if f := src.resolvConf; f != nil {
			files = append(files, f)
			paths = append(paths, f.path, f.systemdPath)
		}
	}
	if len(files) == 0 {
		<-ctx.Done()
		return
	}
	unpublished := false // what was read: a defect has cut a look short
	filewatch.Watch(ctx, filewatch.Config{
		Paths: paths, Log: p.log,
		Check: func(bool) time.Duration {
			changed := unpublished
			unpublished = true
			p.reload(ctx, files, changed)
			unpublished = false
			return 0
		},
		OnPanic: func(panicked any, stack []byte) { p.logPanic(ctx, panicked, stack) },
	})
}

// reload reads the files and publishes a new list if one has changed, or has before.
func (p *Pool) reload(ctx context.Context, files []*resolvConf, changed bool) {
	for _, f := range files {
		if f.reload(ctx) {
			changed = true
			p.log.InfoContext(ctx, "resolv.conf changed", "path", f.path, "upstreams", f.servers)
		}
	}
	p.reapDrained()
	if changed {
		p.publishSources()
	}
}
