// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"

	"github.com/nodecache/node-cache/pkg/certificate"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/upstream"
)

var errNoNameserver = errors.New("names no server that can be asked")

// CheckFiles reports what is wrong with the files that a configuration names, for `node-cache check`: what the agent would refuse
// at its start, and what it would log. [config.Check] itself reads the files that each reload reads again.
func CheckFiles(c *config.Config, found *config.Findings) {
	for i, route := range c.Forward {
		for j, to := range route.To {
			if to.Kind == config.ResolvConf {
				checkResolvConf(fmt.Sprintf("forward[%d].to[%d]", i, j), to.Path, &c.Listen, found)
			}
		}
	}
	if key, file, err := cluster.CheckFiles(c); err != nil {
		found.Refuse(key, file, err, "cluster.context")
	}
	for key, pair := range map[string][2]string{"listen.tls": {c.Listen.Cert, c.Listen.Key}, "admin.tls": {c.Admin.Cert, c.Admin.Key}} {
		if pair[0] == "" {
			continue
		}
		if _, err := certificate.ReadPair(pair[0], pair[1]); err != nil {
			found.Refuse(key+".cert", pair[0], err, key+".key")
		}
	}
	warnFiles(found, "hosts.files", c.Hosts.Files, func(file string) error {
		_, err := localdata.ReadHosts(file)
		return err
	})
	warnFiles(found, "block.files", c.Block.Files, blocklist.Check)
	for key, file := range map[string]string{"etcd.tls.cert": c.Etcd.Cert, "etcd.tls.key": c.Etcd.Key, "etcd.passwordFile": c.Etcd.PasswordFile} {
		if file == "" {
			continue
		}
		if _, err := filewatch.ReadFile(file, maxSecret); err != nil {
			found.Warn(key, file, err)
		}
	}
}

// warnFiles reports which files of a list the agent would not use.
func warnFiles(found *config.Findings, key string, files []string, check func(file string) error) {
	for i, file := range files {
		if err := check(file); err != nil {
			found.Warn(fmt.Sprintf("%s[%d]", key, i), file, err)
		}
	}
}

// maxSecret bounds a certificate, a key or a password of etcd, in bytes.
const maxSecret = 1 << 20

// checkResolvConf checks a resolv.conf. The agent starts if it names no server, but not if it cannot be read.
func checkResolvConf(key, file string, own *config.Listen, found *config.Findings) {
	servers, excluded, err := upstream.ReadResolvConf(file, upstream.Config{Self: own.Receives})
	switch {
	case err != nil:
		found.Refuse(key, file, err)
	case len(servers) == 0:
		found.Warn(key, file, errNoNameserver)
	}
	for _, e := range excluded {
		found.Warn(key, file, fmt.Errorf("nameserver %s is not asked: %s", e.Server, e.Reason))
	}
}
