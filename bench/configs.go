// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
)

// configs are the configurations, as templates of a site: one thread, a cache that holds every name of the hit lists, one
// upstream, no validation, no query log, and where a server has a bound on misses in flight or on those of a client, one above
// the load's 400.
//
//go:embed configs
var configs embed.FS

// The command lines of servers without a configuration. dnsmasq's cache has ten times the names that exist: its manual warns of
// large ones, which cost it speed.
const (
	floorArgs   = "127.0.0.1 {{.Port}}"
	dnsmasqArgs = `--keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --user=root --group=root --pid-file=
		--port={{.Port}} --listen-address=127.0.0.1 --bind-interfaces
		--server=127.0.0.1#{{.Upstream}} --cache-size=10000 --dns-forward-max=4096`
	recursorArgs = `--config-dir={{.Dir}} --socket-dir={{.Dir}} --daemon=no --quiet=yes --loglevel=0
		--local-address=127.0.0.1 --local-port={{.Port}} --reuseport=yes
		--threads=1 --distributor-threads=0 --pdns-distributes-queries=no --max-mthreads=4096
		--forward-zones-recurse=.=127.0.0.1:{{.Upstream}} --dont-query= --dnssec=off`
)

// expand fills in what a configuration or a command line says of the site.
func (s *site) expand(text string) (string, error) {
	t, err := template.New("configuration").Parse(text)
	if err != nil {
		return "", fmt.Errorf("reading a configuration: %w", err)
	}
	var out strings.Builder
	err = t.Execute(&out, s)
	return out.String(), err
}
