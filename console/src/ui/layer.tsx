/** Layers above the page. */

import { X } from "lucide-react";
import type { ReactNode } from "react";
import { Button, Dialog, Heading, Modal, ModalOverlay } from "react-aria-components";

export function Layer({
  title,
  isOpen,
  onClose,
  children,
  width = "max-w-[520px]",
}: {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  children: ReactNode;
  width?: string;
}) {
  return (
    <ModalOverlay
      isOpen={isOpen}
      onOpenChange={(open) => !open && onClose()}
      isDismissable
      className="fixed inset-0 z-40 flex items-start justify-center bg-[rgb(0_0_0/0.35)] p-4 pt-[12vh] max-small:p-0 max-small:pt-0"
    >
      <Modal
        className={`max-h-[80vh] w-full overflow-auto rounded-box border border-line bg-raised shadow-float max-small:max-h-full max-small:rounded-none ${width}`}
      >
        <Dialog className="grid gap-3 p-4">
          <div className="flex items-center justify-between gap-4">
            <Heading slot="title" className="text-lead">
              {title}
            </Heading>
            <Button
              slot="close"
              aria-label="Close"
              className="grid size-8 place-items-center rounded-box text-muted hover:bg-surface"
            >
              <X size={16} aria-hidden="true" />
            </Button>
          </div>
          {children}
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}
