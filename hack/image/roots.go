// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/pem"
	"fmt"
	"io"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule brings the certificates. They come from a module and not from the building machine, because go.sum then says
// which they are: every machine writes the same image, and an update is a change that can be reviewed.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// writeRoots writes the certificate authorities that Mozilla trusts, as Go's own project packs them. A file of certificates
// cannot say "only what was issued before a day", so the few that Mozilla trusts with such a limit are left out.
func writeRoots(w io.Writer) error {
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return fmt.Errorf("writing certificates: %w", err)
		}
	}
	return nil
}
