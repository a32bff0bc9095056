// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/names/tsig"
)

// Findings gets what is wrong with the files that a configuration names.
type Findings struct{ d *decoder }

// Refuse reports a file that the agent does not start without, unless there is a problem with path, the key that names it, or
// another key.
func (f *Findings) Refuse(path, file string, err error, with ...string) {
	if f.d.clean(append(with, path)...) {
		p := fileProblem(f.d, err)
		p.Hint = cmp.Or(p.Hint, hint.Of(err))
		f.d.rejectText(path, file, p)
	}
}

// Warn reports a file that the agent starts without.
func (f *Findings) Warn(path, file string, err error) {
	p := fileProblem(f.d, err)
	f.d.warn(path, quote(file)+": "+p.What, p.Hint)
}

// maxCertificates bounds a file of certificates, in bytes. The CA bundle of a usual system is a quarter as large.
const maxCertificates = 1 << 20

// checkTransferKeys reports a file without keys.
func checkTransferKeys(d *decoder, path string) {
	if _, err := tsig.Read(path); err != nil && d.clean("cluster.transferKeys") {
		p := fileProblem(d, err)
		p.Hint = cmp.Or(p.Hint, "tsig-keygen(8) writes such a file")
		d.rejectText("cluster.transferKeys", path, p)
	}
}

// checkCertificates reports a file without certificates.
func checkCertificates(d *decoder, key, path string) {
	if p := certificatesProblem(d, path); p != nil && d.clean(key) {
		d.rejectText(key, path, p)
	}
}

// fileProblem says why a file is not read.
func fileProblem(d *decoder, err error) *Problem {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the path
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		hint := "name a file that this user can read"
		if d.checking {
			hint += ", or give --no-files if this machine is not the node"
		}
		return problem(err.Error(), hint)
	}
	return problem(err.Error(), "")
}

// certificatesProblem says why a path is not a file of certificates; nil: it is one.
func certificatesProblem(d *decoder, path string) *Problem {
	rest, err := filewatch.ReadFile(path, maxCertificates)
	if err != nil {
		return fileProblem(d, err)
	}
	for n := 0; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n == 0:
			return problem("no certificate in it", "it begins with -----BEGIN CERTIFICATE-----")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE":
			continue
		}
		n++
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return problem(fmt.Sprintf("certificate %d: %v", n, err), "")
		}
	}
}
