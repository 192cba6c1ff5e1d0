package gate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ExpiredError means that a certificate is not valid at the time of this host's clock.
type ExpiredError struct {
	Certificate *x509.Certificate
	Now         time.Time
}

func (e *ExpiredError) Error() string {
	const minute = "2006-01-02 15:04"
	c := e.Certificate
	return fmt.Sprintf("the certificate of %s is valid from %s to %s UTC, and this host's clock says %s",
		c.Subject.CommonName, c.NotBefore.UTC().Format(minute), c.NotAfter.UTC().Format(minute), e.Now.UTC().Format(minute))
}

// RemovedError means that a host of the cluster does not admit this host: the registry does not have this host
// with its key.
type RemovedError struct{ By string }

func (e *RemovedError) Error() string {
	return fmt.Sprintf("host %s does not admit this host: it was removed from the cluster, or has another key", e.By)
}

// OtherClusterError means that the host at an address is not one of the cluster of a token.
type OtherClusterError struct{ At string }

func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("the host at %s is not of the token's cluster", e.At)
}

// explain makes the errors of package crypto/x509 readable.
func explain(err error, now time.Time) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return &ExpiredError{invalid.Cert, now}
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return errors.New("its certificate is of another cluster")
	}
	return err
}
