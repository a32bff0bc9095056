// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// checkEtcd reports what contradicts itself in the section etcd.
func checkEtcd(d *decoder, e *Etcd) {
	on := len(e.Endpoints) > 0
	d.check(on && len(e.Zones) == 0, "etcd.endpoints", "a list: needs etcd.zones", "name the zones of the records, like zones: [skydns.local]", "etcd.zones")
	d.check(!on && len(e.Zones) > 0, "etcd.zones", "a list: needs etcd.endpoints", "name the servers, like endpoints: [\"http://127.0.0.1:2379\"]", "etcd.endpoints")
	encrypted := on && strings.HasPrefix(e.Endpoints[0], "https:")
	for i, endpoint := range e.Endpoints {
		d.check(strings.HasPrefix(endpoint, "https:") != encrypted, fmt.Sprintf("etcd.endpoints[%d]", i),
			quote(endpoint)+": not over the protocol of the first", "write all of them with https:// or with http://")
	}
	d.check(on && !encrypted && e.EtcdTLS != EtcdTLS{}, "etcd.tls", "a section: no server is asked over https", "leave it out, or write https:// in etcd.endpoints", "etcd.endpoints")
	d.check((e.Cert == "") != (e.Key == ""), "etcd.tls.cert", "one of cert and key", "name both files, or none")
	d.check((e.User == "") != (e.PasswordFile == ""), "etcd.user", "one of user and passwordFile", "name both, or none")
}
