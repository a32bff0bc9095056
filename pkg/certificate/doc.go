// SPDX-License-Identifier: Apache-2.0

// Package certificate has the certificate of a server, which follows its files.
package certificate
