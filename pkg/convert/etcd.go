// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// etcd converts the records of an etcd.
func etcd(l *line) {
	c := l.c
	e := config.Default(config.Agent).Etcd
	zones, files, endpoints, onward := l.ownZones(), []string(nil), []string{"http://localhost:2379"}, []string(nil)
	isEncrypted, hasThrough := false, false
	l.options(
		directive{names: "path", take: func(l *line) { e.Prefix = path.Join("/", l.arg(0, e.Prefix)) }},
		directive{names: "endpoint", take: func(l *line) {
			if len(l.args()) > 0 {
				endpoints = l.args()
			}
		}},
		directive{names: "credentials", take: func(l *line) {
			e.User, e.PasswordFile = l.arg(0, ""), "/etc/node-cache/etcd-password"
			l.lost("the password is not copied", "write it to a file, and its path to etcd.passwordFile")
		}},
		directive{names: "tls", take: func(l *line) { isEncrypted, files = true, l.args() }},
		directive{names: "fallthrough", take: func(l *line) { hasThrough, onward = true, l.zones(l.args()) }},
		directive{names: "min-lease-ttl max-lease-ttl", kept: true, why: "the TTL of a record with a lease is 30s at most"},
		directive{names: "stubzones upstream debug"}, // CoreDNS ignores them as well
	)
	e.Endpoints = etcdEndpoints(l, endpoints, isEncrypted)
	e.Fallthrough = etcdFallthrough(l, zones, hasThrough, onward)
	if len(e.Endpoints) > 0 && strings.HasPrefix(e.Endpoints[0], "https:") {
		etcdFiles(l, &e.EtcdTLS, files)
	}
	before := c.cfg.Etcd
	before.Zones = nil
	if _, again := c.origins["etcd"]; len(e.Endpoints) == 0 || again && !reflect.DeepEqual(before, e) {
		l.unread(zones, "the records of one etcd are read", routeIt)
		return
	}
	c.origins["etcd"] = l.origin()
	e.Zones = c.cfg.Etcd.Zones
	for _, zone := range zones {
		e.Zones = appendNew(e.Zones, zone)
	}
	c.cfg.Etcd = e
	l.s.own = append(l.s.own, zones...)
}

// etcdEndpoints returns the servers. One without a protocol is asked as the option tls says.
func etcdEndpoints(l *line, texts []string, isEncrypted bool) (endpoints []string) {
	for _, text := range texts {
		if !strings.Contains(text, "://") {
			text = map[bool]string{true: "https://", false: "http://"}[isEncrypted] + text
		}
		if endpoint, err := config.ParseEtcdEndpoint(fillPlaceholders(text)); err != nil {
			l.lost(oneLine(err), "")
		} else {
			endpoints = appendNew(endpoints, endpoint)
		}
	}
	return endpoints
}

// etcdFallthrough reports whether names without a record are looked up, which is for all zones or none here.
func etcdFallthrough(l *line, zones []string, is bool, onward []string) bool {
	stays := func(zone string) bool {
		return !slices.ContainsFunc(onward, func(o string) bool { return below(zone, o) })
	}
	switch {
	case is && len(onward) > 0 && slices.ContainsFunc(zones, stays):
		l.lost("unknown names of all zones are looked up, not denied: fallthrough is for all zones", "")
	case !is && slices.Contains(zones, ".") && (len(l.c.servers) > 1 || l.c.servesCluster):
		l.lost("unknown names are looked up, not denied: other zones have other answers", "")
		return true
	}
	return is
}

// etcdFiles converts the files of the option tls: CA, or CERT KEY, or CERT KEY CA.
func etcdFiles(l *line, to *config.EtcdTLS, files []string) {
	into := map[int][]*string{1: {&to.CA}, 2: {&to.Cert, &to.Key}, 3: {&to.Cert, &to.Key, &to.CA}}[len(files)]
	roots := l.s.all("root")
	for i, file := range into {
		*file = files[i]
		if !filepath.IsAbs(*file) && len(roots) > 0 && len(roots[0].args()) == 1 {
			*file = filepath.Join(roots[0].args()[0], *file)
		}
	}
	if len(into) > 0 {
		l.differs("the files are read on the agent's host and must exist there", "mount them into the agents' pods, and write their paths there into etcd.tls")
	}
}
