// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// Etcd is the section etcd.
type Etcd struct {
	// The servers, such as `http://127.0.0.1:2379`. Empty: off.
	Endpoints []string `yaml:"endpoints" format:"etcdEndpoint"`
	// The path of the records.
	Prefix string `yaml:"prefix" format:"etcdPrefix"` // with one slash at its start, and none at its end
	// The zones that are answered from the records.
	Zones []string `yaml:"zones" format:"zone"` // lower-case and absolute
	// `on`: names of the zones without a record are looked up like others. `off`: they do not exist.
	Fallthrough bool `yaml:"fallthrough" words:"off,on"`
	// The certificates for servers over https.
	EtcdTLS `yaml:"tls"`
	// The name of the user. Empty: none.
	User string `yaml:"user" format:"text"`
	// A file with the password of the user.
	PasswordFile string `yaml:"passwordFile" format:"path"` // absolute unless Parse has read a relative path
}

// EtcdTLS is the section etcd.tls. Its paths are absolute unless Parse has read relative ones.
type EtcdTLS struct {
	// A file of CA certificates (PEM). Empty: the system's.
	CA string `yaml:"ca" format:"path"`
	// A file with the certificate of the agent (PEM). Empty: none.
	Cert string `yaml:"cert" format:"path"`
	// A file with its key (PEM).
	Key string `yaml:"key" format:"path"`
	// The name in the certificates of the servers. Empty: the host of the endpoint.
	ServerName string `yaml:"serverName" format:"serverName"`
}

// files returns pointers to the paths of e.
func (e *Etcd) files() []*string { return []*string{&e.CA, &e.Cert, &e.Key, &e.PasswordFile} }

// PlainEndpoint returns the first endpoint on another host that gets the password unencrypted, empty if there is none.
func (e *Etcd) PlainEndpoint() string {
	for _, endpoint := range e.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || e.PasswordFile == "" || u.Scheme != "http" {
			continue
		}
		if addr, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
			return endpoint
		}
	}
	return ""
}

// etcdPort is the default port of an endpoint.
const etcdPort = "2379"

// parseEtcdEndpoint reads the URL of an etcd server. It adds the default port if there is none.
func parseEtcdEndpoint(text string) (string, *Problem) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.TrimSuffix(u.String(), "/") != u.Scheme+"://"+u.Host {
		return "", problem("not a server", "write it like http://127.0.0.1:2379 or https://etcd.example")
	}
	if u.Port() == "" {
		u.Host += ":" + etcdPort
	}
	return u.Scheme + "://" + u.Host, nil
}

// parseEtcdPrefix reads the path of records.
func parseEtcdPrefix(text string) (string, *Problem) {
	clean := path.Join("/", text)
	if clean == "/" || strings.ContainsRune(text, 0) {
		return "", problem("not the path of records", "write it like /skydns")
	}
	return clean, nil
}

// parseServerName reads the name in a certificate. The empty string is none.
func parseServerName(text string) (string, *Problem) {
	if text == "" {
		return "", nil
	}
	return parseHost(text)
}
