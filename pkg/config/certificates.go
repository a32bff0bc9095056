// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxCertificates bounds a file of certificates. All that a system trusts take a quarter of it.
const maxCertificates = 1 << 20

// checkFiles reports the files that c names and that are not what they should be.
func checkFiles(c *Config, r *report) {
	for i, route := range c.Forward {
		key := fmt.Sprintf("forward[%d].tls.ca", i)
		if route.CA == "" || !r.clean(key) {
			continue
		}
		if f := certificatesFlaw(route.CA); f.what != "" {
			r.add(Problem{Path: key, What: quote(route.CA) + ": " + f.what, Hint: f.hint})
		}
	}
}

// certificatesFlaw says why a file is none of certificates.
func certificatesFlaw(path string) flaw {
	rest, err := filewatch.ReadFile(path, maxCertificates)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return flaw{what: reason(err), hint: "name a file that this user can read"}
	case err != nil:
		return flaw{what: reason(err)}
	}
	for n := 0; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n == 0:
			return flaw{what: "no certificate in it", hint: "it begins with -----BEGIN CERTIFICATE-----"}
		case block == nil:
			return flaw{}
		case block.Type != "CERTIFICATE":
			continue
		}
		n++
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return flaw{what: fmt.Sprintf("certificate %d: %v", n, err)}
		}
	}
}

// reason is what the system says about a file, without its path.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}
